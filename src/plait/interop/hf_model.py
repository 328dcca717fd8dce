"""plait's models as Hugging Face models: `from_pretrained`, `generate` with beams and padding, `Trainer`.

Importing this module registers them, so that `AutoModelForCausalLM.from_pretrained(folder)` finds them.

Attention masks become the number of padding tokens at the start of each row, as plait's models take them, and plait's
state the cache that Hugging Face's `generate` passes from call to call.

Letters: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.utils.hub import cached_file

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.mixers.table import version
from plait.model.architecture import Architecture, architecture
from plait.model.backbone import Backbone, ModelState
from plait.model.generation import prefill
from plait.model.language_model import IGNORE, Encoder, LanguageModel, init_weights
from plait.model.user_mixers import index_copies, read_copies, write_copies


def left_padding(mask_BT: Tensor | None, tokens_BT: Tensor, seen: int) -> tuple[Tensor | None, bool]:
    """The number of padding tokens at the start of each row (None if none), and whether any row ends in padding.

    The mask also covers the `seen` tokens before these.
    """
    if mask_BT is None:
        return None, False
    real_BT = mask_BT.bool()
    if real_BT.dim() != 2 or real_BT.shape[1] != seen + tokens_BT.shape[1]:
        raise UserError(
            f"the attention mask has shape {tuple(mask_BT.shape)}; expected one number per token, "
            f"({len(tokens_BT)}, {seen + tokens_BT.shape[1]})."
        )
    pad_B, behind_B = _ends(real_BT)
    if not bool((real_BT.sum(1) + pad_B + behind_B == real_BT.shape[1]).all()):
        raise UserError("the attention mask has holes: padding must be at the start or the end of a row.")
    return (pad_B if bool(pad_B.any()) else None), bool(behind_B.any())


@dataclass(frozen=True)
class Moved:
    """Rows rotated so that all their padding is at the start."""

    tokens_BT: Tensor
    segments_BT: Tensor | None
    pad_B: Tensor | None
    back_BT: Tensor | None  # new index of each original position

    def back(self, x_BTV: Tensor) -> Tensor:
        """Undo the rotation of an output."""
        return x_BTV if self.back_BT is None else x_BTV.gather(1, self.back_BT[..., None].expand_as(x_BTV))


def padding_to_the_left(mask_BT: Tensor | None, tokens_BT: Tensor, segments_BT: Tensor | None) -> Moved:
    """For bidirectional models: move all padding to the start of the row, where plait's mixers mask it."""
    pad_B, behind = left_padding(mask_BT, tokens_BT, 0)
    if mask_BT is None or not behind:
        return Moved(tokens_BT, segments_BT, pad_B, None)
    behind_B = _ends(mask_BT.bool())[1]
    T = tokens_BT.shape[1]
    place_T = torch.arange(T, device=tokens_BT.device)
    source_BT = (place_T - behind_B[:, None]) % T
    turned = [None if x is None else x.gather(1, source_BT) for x in (tokens_BT, segments_BT)]
    assert turned[0] is not None
    pads_B = T - mask_BT.bool().sum(1)
    return Moved(turned[0], turned[1], pads_B, (place_T + behind_B[:, None]) % T)


def _ends(real_BT: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of padding tokens before the first real token and after the last."""
    if not bool(real_BT.any(1).all()):
        raise UserError("a row of the attention mask is all padding.")
    number_BT = real_BT.long()
    return number_BT.argmax(1), number_BT.flip(1).argmax(1)


class StateCache(Cache):
    """One `ModelState` for all layers, whatever their kinds of state.

    `seen` counts tokens as `generate` does, padding included; the state itself may hold rows without padding.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(layers=[])  # the library's layers are for keys and values only
        self.backbone = backbone
        self.state: ModelState | None = None
        self.seen = 0

    def keep(self, state: ModelState, tokens: int) -> None:
        """The state after `tokens` more tokens."""
        self.state, self.seen = state, self.seen + tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # no maximum

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.reorder(beam_idx.to(self.state.pos_B.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.reorder_cache(torch.arange(len(self.state.pos_B)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last tokens, if every mixer can; else an error that names those that cannot."""
        if self.state is not None and tokens_to_remove:
            self.state = self.backbone.crop(self.state, abs(tokens_to_remove))
            self.seen -= abs(tokens_to_remove)

    def reset(self) -> None:
        self.state, self.seen = None, 0

    @property
    def batch_size(self) -> int:
        return -1 if self.state is None else len(self.state.pos_B)

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    @property
    def is_croppable(self) -> bool:
        return False  # would have to hold for every mixer, but holds only for a plain KV cache


class PlaitConfig(PreTrainedConfig):
    """The spec defines the model; the other fields are for other programs that read them."""

    model_type = "plait"
    keys_to_ignore_at_inference = ("past_key_values",)

    spec: str = "d=32 vocab=256 | attn swiglu"
    vocab_size: int = 256
    hidden_size: int = 32
    num_hidden_layers: int = 1
    tie_word_embeddings: bool = False
    use_cache: bool = True
    mixers: dict[str, dict[str, str]] | None = (
        None  # the user's own, as `plait.model.user_mixers.read_copies` takes them
    )

    @classmethod
    def of(cls, arch: Architecture, **fields: Any) -> PlaitConfig:
        header = arch.header
        if header.pos == "learned":
            fields["max_position_embeddings"] = header.max_len
        config: PlaitConfig = cls(
            spec=arch.text,
            vocab_size=header.vocab,
            hidden_size=header.d,
            num_hidden_layers=arch.num_layers,
            mixers=index_copies(arch) or None,
            # In transformers: whether any two parameters are shared; in plait (header.tie): whether output = embedding.
            tie_word_embeddings=bool(_tied(_skeleton(arch, "meta"))),
            **fields,
        )
        return config


class PlaitModel(PreTrainedModel):
    """Shared by both classes: a plait model's modules under their own names, so that weight names stay the same."""

    config_class = PlaitConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 (theirs is a list)

    backbone: Backbone
    output: nn.Module

    def __init__(self, config: PlaitConfig) -> None:
        super().__init__(config)
        arch = architecture(config.spec, _known_mixers(config))
        loading = torch.get_default_device().type == "meta"
        # On the CPU even while loading weights, because buffers that are not in files need their values.
        skeleton = _skeleton(arch, "cpu")
        if not loading:
            init_weights(skeleton, seed=0)
        self.arch = arch
        for name, part in skeleton.named_children():
            self.add_module(name, part)
        self._tied_weights_keys = _tied(skeleton)
        self._fixed_buffers = {
            module: {name: buffer.clone() for name, buffer in module.named_buffers(recurse=False)}
            for module in skeleton.modules()
            if module._non_persistent_buffers_set
        }
        self.post_init()

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, folder: Any, *args: Any, config: Any = None, **options: Any
    ) -> Any:
        """Like the parent's. Mixers that came with the weights are run only with `trust_remote_code=True`."""
        if config is None:
            config = PlaitConfig.from_pretrained(folder)
        if options.get("trust_remote_code"):
            for entry in (config.mixers or {}).values():
                if "file" in entry and version(entry["source"]) is None:
                    read_copies({entry["file"]: entry}, Path(str(cached_file(folder, entry["file"]))).parent)
        return super().from_pretrained(folder, *args, config=config, **options)

    def save_pretrained(self, folder: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """Like the parent's, and writes the files of the user's own mixers."""
        super().save_pretrained(folder, *args, **options)
        write_mixers(self.arch, Path(folder))

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the buffers, which no file contains; weights come from `plait.model.language_model` or a file."""
        for name, value in self._fixed_buffers.get(module, {}).items():
            getattr(module, name).copy_(value)

    def _set_gradient_checkpointing(self, enable: bool = True, *unused: Any, **also_unused: Any) -> None:
        self.backbone.activation_checkpointing = enable

    def get_input_embeddings(self) -> nn.Module:
        tables = self.backbone.embedding.tables
        if len(tables) > 1:
            raise NotImplementedError("an adaptive embedding has several tables")
        return tables[0]

    def get_output_embeddings(self) -> nn.Module | None:
        return self.output if isinstance(self.output, nn.Linear) else None


class PlaitForCausalLM(PlaitModel, GenerationMixin):
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Rows may be padded on the left, as for `generate`, or on the right (later tokens have no effect)."""
        _refuse(unused, "inputs_embeds")
        wanted = self.config.use_cache if use_cache is None else use_cache
        cache = self._cache(past_key_values) if wanted or past_key_values is not None else None
        if past_key_values is None and (self.training or labels is not None):
            cache = None  # nothing to continue from
        pad_B, right = left_padding(attention_mask, input_ids, 0 if cache is None else cache.seen)
        if cache is None or (past_key_values is None and right):
            cache, hidden_BTD = None, self._whole(input_ids, pad_B)
        elif cache.state is None:
            hidden_BTD, state = prefill(self.backbone, input_ids, pad_B)
            cache.keep(state, input_ids.shape[1])
        elif right:
            raise UserError("padding after tokens that are to be continued; pad on the left (padding_side='left').")
        else:
            hidden_BTD, state = self.backbone.extend(input_ids, cache.state)
            cache.keep(state, input_ids.shape[1])
        logits_BTV: Any = self.output(hidden_BTD[:, -logits_to_keep:] if logits_to_keep else hidden_BTD)
        loss: Any = None
        if labels is not None:
            targets_BT = F.pad(labels[:, 1:], (0, 1), value=IGNORE)
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORE)
        out = CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=cache)
        return out.to_tuple() if return_dict is False else out

    def _whole(self, tokens_BT: Tensor, pad_B: Tensor | None) -> Tensor:
        """The parallel form, if padding allows it."""
        if pad_B is not None and not all(block.mixer.paddable for block in self.backbone.blocks):
            return prefill(self.backbone, tokens_BT, pad_B)[0]
        hidden_BTD: Tensor = self.backbone(tokens_BT, pad_B=pad_B)
        return hidden_BTD

    def _cache(self, past: Any) -> StateCache:
        if past is not None and not isinstance(past, StateCache):
            raise UserError(f"past_key_values is a {type(past).__name__}; a plait model continues its own StateCache.")
        return StateCache(self.backbone) if past is None else past

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `generate` then uses the cache that `forward` returns


class PlaitForMaskedLM(PlaitModel):
    transform: nn.Module

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
        **unused: Any,
    ) -> MaskedLMOutput | tuple[Any, ...]:
        """Rows may be padded on either side."""
        _refuse(unused, "inputs_embeds")
        segments = token_type_ids if self.backbone.segment is not None else None
        moved = padding_to_the_left(attention_mask, input_ids, segments)
        hidden_BTD = self.backbone(moved.tokens_BT, pad_B=moved.pad_B, segments_BT=moved.segments_BT)
        logits_BTV: Any = moved.back(self.output(self.transform(hidden_BTD)))
        loss: Any = None
        if labels is not None:
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        out = MaskedLMOutput(loss=loss, logits=logits_BTV)
        return out.to_tuple() if return_dict is False else out


def write_mixers(arch: Architecture, folder: Path) -> None:
    if "modeling_plait.py" in {entry.get("file") for entry in index_copies(arch).values()}:
        raise UserError("a mixer called modeling-plait cannot be exported to Hugging Face; give it another name.")
    write_copies(arch, folder)


def _known_mixers(config: PlaitConfig) -> dict[str, type[MixerOptions]]:
    mixers: dict[str, type[MixerOptions]] = {}
    for name, entry in (config.mixers or {}).items():
        if "package" in entry:
            mixers |= read_copies({name: entry}, Path())
            continue
        known = version(entry["source"])
        if known is None:
            raise UserError(
                f"this model has a custom mixer, {name}, in {entry['file']} next to the weights. Read "
                "that file, then load the model with trust_remote_code=True."
            )
        mixers[name] = known
    return mixers


def _skeleton(arch: Architecture, device: str) -> LanguageModel | Encoder:
    kinds: dict[str, type[LanguageModel] | type[Encoder]] = {"lm": LanguageModel, "encoder": Encoder}
    if arch.header.kind not in kinds:
        raise UserError(f"a model of kind={arch.header.kind} cannot be exported to Hugging Face; lm and encoder can.")
    with torch.device(device):
        return kinds[arch.header.kind](arch)


def _tied(model: nn.Module) -> dict[str, str]:
    """For each further name of a shared parameter, its first name."""
    first: dict[int, str] = {}
    names = [(name, first.setdefault(id(p), name)) for name, p in model.named_parameters(remove_duplicate=False)]
    return {name: owner for name, owner in names if name != owner}


def _refuse(arguments: dict[str, Any], name: str) -> None:
    if arguments.get(name) is not None:
        raise UserError(f"{name} given; a plait model takes input_ids.")


AutoConfig.register("plait", PlaitConfig, exist_ok=True)
AutoModelForCausalLM.register(PlaitConfig, PlaitForCausalLM, exist_ok=True)
AutoModelForMaskedLM.register(PlaitConfig, PlaitForMaskedLM, exist_ok=True)
