"""Checking and timing candidates on a device. Floor 1; names nothing inside torch."""
