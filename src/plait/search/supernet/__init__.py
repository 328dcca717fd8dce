"""Differentiable search: a network in which every layer is a mixture of choices, and the training that picks one.

After PAR Transformer (Mandava et al. 2020, arXiv:2009.04534) and FBNet (Wu et al. 2019, arXiv:1812.03443), for any
mixers of the table.
"""
