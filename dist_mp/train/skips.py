"""When a run is given up because its steps are skipped."""

from __future__ import annotations

from dist_mp.errors import UserError
from dist_mp.precision.loss_scale import LossScale
from dist_mp.train.records import StepRecord


def check_skips(scale: LossScale, record: StepRecord) -> None:
    """Raise a UserError where too many steps in a row were skipped, and say whether the loss scale can be the cause."""
    skips = 0 if record.applied else int(scale.skips_in_a_row)
    if skips < scale.max_skips:
        return
    cause = (
        f"the loss scale is at {float(scale.scale):g} and cannot be the cause: look for NaN in the data or a "
        f"learning rate that is too high ({record.learning_rate:g})"
        if scale.at_floor
        else f"the loss scale fell to {float(scale.scale):g} and the gradients still overflow"
    )
    raise UserError(
        f"training: {skips} steps in a row had gradients that are not finite, up to step {record.step}; {cause}"
    )
