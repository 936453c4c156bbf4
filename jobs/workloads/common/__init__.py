"""Parts that several workloads share: the encoder and checks of parameters."""
