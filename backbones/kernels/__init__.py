"""Point-wise attention as one operator of torch (`operator`): fused Triton kernels on GPUs, blocks of matrix products
elsewhere.

Only the arithmetic is here. The attention functions that users call, softmax included, are in
`backbones.kernels.functions`, and the module around them in `backbones.attention`.
"""
