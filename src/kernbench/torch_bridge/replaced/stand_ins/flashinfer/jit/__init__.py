"""What would compile kernels of FlashInfer's."""
