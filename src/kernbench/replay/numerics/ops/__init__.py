"""What each operation computes: a table per dialect, named like its module in kernel_ir/ops."""
