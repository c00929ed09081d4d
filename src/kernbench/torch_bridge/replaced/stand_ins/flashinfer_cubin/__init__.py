"""The kernels that FlashInfer would download: programs only ask whether they are there."""
