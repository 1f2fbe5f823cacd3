"""Every check with its hint, in the order in which they run."""

from collections.abc import Callable

from transfer.testing import behaviour, sizes, weights
from transfer.testing.subject import Subject

Check = Callable[[Subject], str | None]
"""Raises CheckFailed or CheckSkipped; returns what it measured, or nothing."""
CATALOGUE: dict[str, tuple[Check, str]] = {
    run.__name__: (run, hint)
    for run, hint in (
        (sizes.builds, "a backbone takes images [B, 3, H, W] and gives features [B, D]; see docs/adding-a-part.md"),
        (sizes.single_image, "name the dimensions that squeeze() takes, or flatten(1)"),
        (sizes.other_sizes, "take h and w from the tensor (x.shape[-2:]); never write a grid such as 14 x 14"),
        (sizes.one_model_all_sizes, "resample positions in the forward pass; take h and w from the tensor"),
        (sizes.maps, "return [B, D, h, w] with h from H and w from W, and give feature_info the right reduction"),
        (sizes.token_grid, "keep [B, D, h, w] and flatten(2) in this order; transpose(2, 3) swaps rows and columns"),
        (sizes.memory_formats, "use reshape or flatten in place of view, or call contiguous() before it"),
        (behaviour.input_is_kept, "write x = x + y, not x += y or x.add_(y), and ReLU without inplace on the input"),
        (
            behaviour.stays_float32,
            "make constants in the dtype of their input: x.new_tensor(...), torch.as_tensor(a, dtype=x.dtype)",
        ),
        (behaviour.eval_is_deterministic, "draw random numbers only `if self.training`"),
        (
            behaviour.other_seed,
            "initialise with torch's generator, which the seed sets, and without a seed of your own",
        ),
        (
            behaviour.batch_independence,
            "reduce over tokens or channels, never over dimension 0; batch norm needs track_running_stats",
        ),
        (behaviour.train_equals_eval, "let only dropout, stochastic depth and batch norm depend on self.training"),
        (behaviour.eval_keeps_state, "update running statistics only `if self.training`"),
        (
            behaviour.bf16_autocast,
            "cast to x.dtype, not to float32, what meets activations; sum and exponentiate in float32",
        ),
        (
            weights.gradients_reach_parameters,
            "remove detach(), .data, .item() and no_grad(); delete unused layers or set requires_grad=False",
        ),
        (
            weights.own_parameters,
            "make a module for each place (copy.deepcopy of one), and parameters in __init__, not in the class",
        ),
        (weights.state_dict_round_trip, "register what the output depends on as a parameter or a persistent buffer"),
    )
}
"""The checks by name, each with the way in which its failure is usually mended."""
