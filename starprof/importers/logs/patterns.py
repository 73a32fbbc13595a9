"""How training frameworks write a step into their logs: one table, first match wins."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?(?:[eE][-+]?\d{1,3})?"


@dataclass(frozen=True)
class Form:
    """One way to write a step.

    Attributes:
        framework: whose it is, for what is shown.
        step: finds the record and its group `step`; groups `epoch` and `total` (steps an epoch, or in all) if there.
        time: (pattern, microseconds per unit) with the time in group 1; with 0 the unit is another group, if told.
        rate: with a rate per second in group 1.
        rate_in_samples: it counts samples, not steps.
        data: like `time`, for the part of it that was waiting for data.
        samples: batch size of the whole job in group 1.
        tokens: tokens of the whole job's step in group 1.
        clock: seconds since the start in group 1; counts before a clock stamp of the line.
        needs_time: a line without the time is none of this form.
    """

    framework: str
    step: re.Pattern[str]
    time: tuple[tuple[re.Pattern[str], float], ...] = ()
    rate: tuple[re.Pattern[str], ...] = ()
    rate_in_samples: bool = False
    data: tuple[tuple[re.Pattern[str], float], ...] = ()
    samples: re.Pattern[str] | None = None
    tokens: re.Pattern[str] | None = None
    clock: re.Pattern[str] | None = None
    needs_time: bool = False


UNITS_US = {
    **dict.fromkeys(("us", "µs", "usec"), 1.0),
    **dict.fromkeys(("ms", "msec", "msecs", "milliseconds"), 1e3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1e6),
    **dict.fromkeys(("min", "mins", "minutes"), 6e7),
}


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("NUM", _NUMBER).replace("UNIT", "|".join(UNITS_US)))


_OF = r"(?P<step>\d{1,12})\s*/\s*(?P<total>\d{1,12})"
_SPEEDS = (
    _re(r"\b(NUM)\s?(?:it|iter|iters|steps?|batch|batches)/s\b"),
    _re(r"(?:steps|iterations|iters)[_ /]?per[_ ]sec(?:ond)?s?[\"']?\s*[:=]?\s*(NUM)"),
)

BLOCK = Form("Composer or OLMo", _re(r"\[(?:batch|step)=(?P<step>\d{1,12})/(?P<total>\d{1,12})\b"))
"""The first line of a record of several lines; one of the others is `BLOCK_RATE`."""

BLOCK_RATE = _re(r"\bthroughput/(?:device/)?batches_per_sec(?:ond)?\s*[=:]\s*(NUM)")

FORMS: tuple[Form, ...] = (
    Form(
        "Megatron-LM",
        _re(rf"\biteration\s+{_OF}\s*\|"),
        time=((_re(r"elapsed time per iteration \((ms|s)\):\s*(NUM)"), 0.0),),
        samples=_re(r"global batch size:\s*(\d{1,9})"),
    ),
    Form(
        "NeMo",
        _re(r"\bglobal_step[=:]\s*(?P<step>\d{1,12})"),
        time=((_re(r"train_step_timing in s[=:]\s*(NUM)"), 1e6),),
        samples=_re(r"global_batch_size[=:]\s*(\d{1,9})"),
        needs_time=True,
    ),
    Form(
        "DeepSpeed",
        _re(r"\bsteps:\s*(?P<step>\d{1,12})\s+loss:"),
        time=((_re(r"iter time \(s\):\s*(NUM)"), 1e6),),
    ),
    Form(
        "DeepSpeed",
        _re(r"\bglobal_step=(?P<step>\d{1,12}),"),
        rate=(_re(r"CurrSamplesPerSec=(NUM)"),),
        rate_in_samples=True,
    ),
    Form("DeepSpeed", _re(r"\bstep=(?P<step>\d{1,12}), skipped=\d")),
    Form(
        "RETURNN",
        _re(r"\bep (?P<epoch>\d{1,9}) train, step (?P<step>\d{1,12}),"),
        time=((_re(r"\b(NUM) sec/step"), 1e6),),
    ),
    Form(
        "MaxText",
        _re(r"\bcompleted step: (?P<step>\d{1,12}), seconds:"),
        time=((_re(r"\bseconds: (NUM)"), 1e6),),
    ),
    Form(
        "fairseq",
        _re(r"\bnum_updates[\"']?[=:]\s*[\"']?(?P<step>\d{1,12})"),
        rate=(_re(r"\bups[\"']?[=:]\s*[\"']?(NUM)"),),
        clock=_re(r"\bwall[\"']?[=:]\s*[\"']?(NUM)"),
    ),
    Form(
        "MMEngine",
        _re(rf"\b(?:Epoch ?\(train\)|Epoch)\s*\[(?P<epoch>\d{{1,9}})\]\s*\[\s*{_OF}\]"),
        time=((_re(r"\b[Tt]ime:?\s+(NUM)"), 1e6),),
        data=((_re(r"\b(?:data_time|[Dd]ata):?\s+(NUM)"), 1e6),),
    ),
    Form(
        "MMEngine",
        _re(rf"\bIter ?(?:\(train\))?\s*\[\s*{_OF}\]"),
        time=((_re(r"\btime:\s*(NUM)"), 1e6),),
        data=((_re(r"\bdata_time:\s*(NUM)"), 1e6),),
    ),
    Form(
        "torchvision or the ImageNet example",
        _re(rf"\bEpoch: \[(?P<epoch>\d{{1,9}})\]\s*\[\s*{_OF}\]"),
        time=((_re(r"\b[Tt]ime:?\s+(NUM)"), 1e6),),
        data=((_re(r"\b[Dd]ata:?\s+(NUM)"), 1e6),),
    ),
    Form(
        "timm",
        _re(rf"\bTrain: (?P<epoch>\d{{1,9}}) \[\s*{_OF}"),
        time=((_re(r"\bTime:\s*(NUM)s"), 1e6),),
        data=((_re(r"\bData:\s*(NUM)"), 1e6),),
    ),
    Form(
        "Detectron2",
        _re(r"\beta: \S{1,40}(?: \S{1,20})?\s+iter: (?P<step>\d{1,12})\s"),
        time=((_re(r"\btime: (NUM)"), 1e6),),
        data=((_re(r"\bdata(?:_time)?: (NUM)"), 1e6),),
    ),
    Form(
        "nanoGPT",
        _re(r"\biter (?P<step>\d{1,12}): loss\b"),
        time=((_re(r"\btime (NUM)ms"), 1e3),),
    ),
    Form(
        "llm.c",
        _re(rf"\bstep\s+{_OF}\s*\| .{{0,60}}loss"),
        time=((_re(r"\|\s*(NUM) ms\s*\|"), 1e3),),
    ),
    BLOCK,
    Form(
        "a log",
        _re(
            r"\b(?:global[_ ]?step|train(?:ing)?[_ ]step|[Ss]teps?|STEP|[Ii]teration|[Ii]ters?)[\"']?"
            r"\s*[=:#\[(]{0,2}\s*(?P<step>\d{1,12})\b"
        ),
        time=(
            (
                _re(
                    r"\b(?:(?:train[_ ])?step[_ ]?time|step_duration|iter(?:ation)?[_ ]time|batch[_ ]time|step_seconds"
                    r"|(?:time|sec(?:ond)?s?)[_/ ]?(?:per[_ ]|/ ?)(?:step|it|iter|iteration|batch))"
                    r"(?:[_ /]?\(?(us|ms|secs?|seconds|s)\)?)?[\"']?\s*[=:]?\s*(NUM)(?:\s?(UNIT)\b)?"
                ),
                0.0,
            ),
            (_re(r"\b(NUM)\s?(?:sec|s|seconds)/(?:it|iter|iteration|step|batch)\b"), 1e6),
            (_re(r"\b(NUM)\s?ms/(?:it|iter|iteration|step|batch)\b"), 1e3),
            (_re(r"\b(?:dt|took|in|[Tt]ime|elapsed)[\"']?\s*[=:]?\s*(NUM)\s?(ms|secs?|seconds|s)\b"), 0.0),
            (_re(r"\b(?:dt|[Tt]ime)[\"']?\s*[=:]\s*(NUM)(?![\d:.])"), 0.0),
        ),
        rate=_SPEEDS,
        data=(
            (
                _re(
                    r"\bdata(?:_|[ -])?(?:loading[_ ])?(?:time|wait)(?:[_ ]?\(?(us|ms|s)\)?)?[\"']?\s*[=:]?\s*(NUM)"
                    r"(?:\s?(UNIT)\b)?"
                ),
                0.0,
            ),
        ),
        samples=_re(r"global[_ ]batch[_ ]size[\"']?\s*[=:]\s*(\d{1,9})"),
        tokens=_re(r"\b(?:text_|total_|num_)?tokens(?:[_ ]per[_ ]step)?[\"']?\s*[=:]\s*(\d{1,12})\b"),
    ),
)
"""Tried in this order; a line belongs to the first whose `step` is found in it."""

BAR = _re(
    r"\b\d{1,3}%\|[^|]{0,300}\|\s*(?P<step>\d{1,12})/(?P<total>\d{1,12})\s*"
    r"\[(?P<elapsed>(?:\d{1,6}:)?\d{1,6}:\d\d)<[^,\]]{0,20},\s*(?P<rate>NUM|\?)\s?(?P<unit>it/s|s/it|batch/s|s/batch)?"
)
"""A tqdm bar behind its label: `Epoch 3:  42%|####  | 42/100 [00:12<00:16,  3.45it/s, loss=0.5]`."""

RICH_BAR = _re(
    r"Epoch \d{1,9}(?:/\d{1,9})?\s.{0,300}?\s(?P<step>\d{1,12})/(?P<total>\d{1,12})\s+"
    r"(?P<elapsed>(?:\d{1,6}:)?\d{1,6}:\d\d)\s\S\s\S{1,20}\s+(?P<rate>NUM)(?P<unit>it/s|s/it)"
)
"""Lightning's rich bar: `Epoch 0/9 ---- 42/100 0:00:12 * 0:00:16 3.45it/s`."""

NOT_TRAINING = re.compile(
    r"valid|eval|sanity|\btest|predict|generat|download|upload|\bmap\b|token|loading|saving|filter|shard|merg|fetch",
    re.IGNORECASE,
)
EPOCH_OF_LABEL = re.compile(r"[Ee]poch\s*[:=\[]?\s*(\d{1,9})")

SAVES = re.compile(
    r"\bsav(?:ing|ed)\b.{0,40}\b(?:checkpoint|ckpt)|\b(?:checkpoint|ckpt)\b.{0,60}\bsav(?:ing|ed)\b", re.IGNORECASE
)
EVALUATES = re.compile(
    r"\bvalidation loss at\b|\brunning (?:evaluation|validation)\b|\b(?:start(?:ing|ed)?|begin(?:ning)?) "
    r"(?:evaluation|validation)\b|\bevaluating\b|\bEpoch ?\(val\)",
    re.IGNORECASE,
)
WORLD_SIZE = re.compile(
    r"\bworld[_ ]size\b[ .:=]{1,60}(\d{1,7})\b|\bStarting with (\d{1,7}) processes\b", re.IGNORECASE
)
BATCH_SIZE = re.compile(r"\b(?:train_batch_size|global_batch_size)\b[\"']?[ .:=]{1,60}(\d{1,9})\b")
