"""Forms of a convolution and its gradients, and the rules that choose among them."""
