"""Tables of synchronisation control: what was made of whose gradients, when the mode changed, and what it cost whom.

Rows exist only where a job was moved to rounds; native steps leave none. Lists of ranks are written as everywhere
(`0-3,8`), lists of values as `starprof.model.valuelists` does (`0*7,2`).
"""

from starprof.model.columns import (
    AT,
    ATTEMPT_KEY,
    NODE_KEY,
    RANK_KEY,
    Table,
    fact,
    gauge,
    key,
    real,
    text,
)

NATIVE = "native"
"""Mode of native steps; the others are called as in `starprof.sync.policies.MODES`."""

SYNC_UPDATE = Table(
    31,
    "sync_update",
    """One row per round that a coordinator closed: an update of everybody's parameters, or, where ranks step on their
own, a mean of their states, which stand for gradients here. A round whose reduction failed is closed again: of the rows
of one version that of the greatest epoch, of those that of most retries, and of those the newest is what was applied.
The lists of values are in the order of the contributors, and of the numbers of one contributor's gradients.""",
    (
        NODE_KEY,
        AT,
        ATTEMPT_KEY,
        key("version", "of the parameters that it was applied to; it made version + 1 of them"),
        fact("epoch", "reign of the coordinator that closed it"),
        fact("retries", "tries to reduce it before this one"),
        text("mode", "synchronisation mode that decided"),
        text("options", "of the mode, JSON; NULL for none"),
        text("contributors", "ranks whose gradients went in, as a list such as 0-3,8"),
        fact("gradients", "how many went in"),
        text("per_contributor", "gradients of each contributor as a list of values; NULL: one of each"),
        text("numbers", "number of each gradient within its rank"),
        text("weights", "factor of each gradient; of a state, times the steps that its rank has made on its own"),
        text("staleness", "updates between the parameters that each gradient was computed on and this one"),
        text("samples", "samples that each gradient is the mean of"),
        real("weight_sum", "sum of the weights: how much of a native step the update stands for"),
        fact("staleness_max", "largest staleness, NULL without gradients"),
        text("released", "ranks that went on with it, as a list; NULL: the contributors"),
        fact("native", "1 when native steps follow it"),
    ),
)

SYNC_SWITCH = Table(
    32,
    "sync_switch",
    "One row per change of the synchronisation mode; `native` is the framework's own all-reduce of all ranks.",
    (
        NODE_KEY,
        AT,
        ATTEMPT_KEY,
        fact("epoch", "reign of the coordinator that changed it"),
        fact("version", "of the parameters from which the new mode holds; NULL when the change did not come about"),
        text("from_mode", "mode before"),
        text("from_options", "of that mode, JSON; NULL for none"),
        text("to_mode", "mode after"),
        text("to_options", "of that mode, JSON; NULL for none"),
        text("asked_by", "who wanted it: user, advisor or coordinator"),
        text("reason", "why, in the words of who wanted it"),
        gauge("took_us", "from the wish to the first update of the new mode, NULL when not measured"),
    ),
)

SYNC_STEP = Table(
    33,
    "sync_step",
    """What a rank did in a step while it was in rounds; joins with `step` on attempt, rank and step. Its batches are
those it computed (one row each) and those it skipped.""",
    (
        ATTEMPT_KEY,
        RANK_KEY,
        key("step", "step of the rank"),
        fact("number", "number of the gradient that it handed in, NULL for none"),
        fact("version", "of its parameters at the end of the step"),
        gauge("waited_us", "from handing its gradient in to its release"),
        gauge("updates", "updates that it applied in the step: all but the last were replayed"),
        gauge("skipped", "batches that it left out before the step, to catch up"),
        gauge(
            "not_finite",
            "updates left out because the gradient was not finite, as a fall of the loss scale tells since the step "
            "before; NULL without a loss scale",
        ),
    ),
    packed=True,
)

SYNC_NOISE = Table(
    34,
    "sync_noise",
    """What the gradients of an update tell about their noise; of one update in a hundred, native or not. With `local`
L, `mean` G and `share` q, the whole gradient's squared norm is estimated by (G - q L)/(1 - q), the variance of one
batch's gradient by (L - G)/(1 - q); their ratio, averaged apart, is the gradient noise scale in batches of a rank.""",
    (
        NODE_KEY,
        AT,
        ATTEMPT_KEY,
        key("version", "of the parameters that the update was applied to; of two in a row the second one's"),
        text("mode", "synchronisation mode, or native"),
        fact("gradients", "how many were looked at"),
        real("local", "mean of their squared norms, by their weights; loss scaling is taken out"),
        real("mean", "squared norm of their weighted mean"),
        real("share", "sum of the squared weights of that mean: 1/n for n gradients that count alike"),
        real("scale", "running noise scale in batches of one rank, NULL while no signal was seen"),
        real("low", "lower end of its interval of about 95 %"),
        real("high", "upper end, NULL where there is none"),
    ),
)

ADVISOR_ACTION = Table(
    35,
    "advisor_action",
    """What an advisor did to the job or would have done: several rows for each of its actions, one for every stage of
its life. Gains are time for the same progress before over that after: 2 is twice as fast.""",
    (
        NODE_KEY,
        AT,
        ATTEMPT_KEY,
        key("action", "number of the action, from 1; 0: of none"),
        text("stage", "proposed, asked, canary, kept, rolled-back, returned, would, suggested, declined, guard, drain"),
        text("mode", "the job is moved to, or would be"),
        text("options", "of that mode, JSON; NULL for none"),
        text("from_mode", "mode before"),
        text("ranks", "who is late, as a list such as 0-3,8"),
        text("hosts", "where they are"),
        text("reason", "in words"),
        real("predicted_gain", "that the chooser expects"),
        real("predicted_low", "lower end of its 95 % interval"),
        real("predicted_high", "upper end"),
        real("dry_gain", "of the mode's policy over the recorded times of the ranks"),
        real("measured_gain", "in the job, step times after against before, progress counted in"),
        real("measured_low", "lower end of its 95 % interval"),
        real("measured_high", "upper end"),
        real("accuracy_risk", "of the mode, 0 to 1"),
        fact("max_staleness", "that the mode causes, in updates"),
        fact("steps", "that were looked at: before the action, or in the canary"),
    ),
)
