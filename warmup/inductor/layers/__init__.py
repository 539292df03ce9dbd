"""One artifact for equal layers: traced and compiled once, called for each through one operator.

`form` is what a call of a layer is compiled for, `trace` what dynamo read of the layer, `place`
where dynamo read it; `compiler` compiles a layer, `artifact` calls it with another layer's tensors,
`opaque_call` is the operator in the graph around the layers, `joined_calls` makes one node of many,
which `call_steps` writes and runs, and `module_watch` notices changes of
modules. Where weights are frozen, `weight_tape` records how constants are made of them, `packing`
makes those of another layer, and `graph_constants` puts them into the generated code.
"""
