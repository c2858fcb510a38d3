"""Ways of writing one convolution and its gradients, and the rules that choose among them."""
