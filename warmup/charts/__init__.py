"""Charts that say what they show. Floor 2; `warmup.charts.chart` is the way in."""
