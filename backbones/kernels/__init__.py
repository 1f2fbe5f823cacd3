"""Point-wise attention as one operator of torch: a fused kernel for GPUs, blocks of matrix products elsewhere."""
