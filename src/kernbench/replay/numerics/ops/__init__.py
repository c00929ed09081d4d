"""What each operation computes: a table per dialect, by the name of its module in kernel_ir/ops."""
