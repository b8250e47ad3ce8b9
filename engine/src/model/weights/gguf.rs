//! Checkpoints in GGUF, llama.cpp's format, with its names of tensors turned into transformers'.

use std::{io::Cursor, path::Path};

use candle_core::quantized::gguf_file::Content;

use super::{Bytes, Checkpoint, Entry};
use crate::{backend::RowOrder, error::Result, model::Architecture};

impl Checkpoint {
    /// Maps a GGUF file. The content is its header: metadata and the table of tensors.
    ///
    /// # Errors
    /// It is not GGUF, a tensor's type or name is unknown, or it is one part of several.
    pub(crate) fn open_gguf(path: &Path) -> Result<(Self, Content, Architecture)> {
        let mut checkpoint = Self::new(path);
        let bytes = Bytes::map(path)?;
        let content = Content::read(&mut Cursor::new(&*bytes))
            .map_err(|error| checkpoint.error(format!("the GGUF header could not be read: {error}")))?;
        let architecture =
            Architecture::of_gguf(&content.metadata).map_err(|reason| checkpoint.error(reason))?;
        if content
            .metadata
            .get("split.count")
            .is_some_and(|count| count.to_u16().is_ok_and(|count| count > 1))
        {
            return Err(checkpoint.error("the model is split into several GGUF files: merge them into one"));
        }
        for (stored, info) in &content.tensor_infos {
            let name = transformers_name(stored, architecture)
                .ok_or_else(|| checkpoint.error(format!("the GGUF tensor `{stored}` is unknown")))?;
            let shape = info.shape.dims().to_vec();
            let dtype = info.ggml_dtype;
            // Blocks of quantised types lie along a row, and rows are taken one by one.
            let elements = shape
                .iter()
                .try_fold(1usize, |product, dim| product.checked_mul(*dim));
            let row = shape.last().copied().unwrap_or(0);
            let range = elements
                .filter(|_| row.is_multiple_of(dtype.block_size()))
                .map(|elements| elements / dtype.block_size() * dtype.type_size())
                .and_then(|size| {
                    let begin = content.tensor_data_offset.checked_add(info.offset)?;
                    let begin = usize::try_from(begin).ok()?;
                    Some(begin..begin.checked_add(size)?)
                })
                // candle reads blocks of up to four-byte alignment in place; the format promises more.
                .filter(|range| range.end <= bytes.len() && range.start.is_multiple_of(8))
                .ok_or_else(|| {
                    checkpoint.error(format!(
                        "the GGUF tensor `{stored}` of shape {shape:?} does not lie in the file as it should: the file is damaged"
                    ))
                })?;
            let entry = Entry {
                order: row_order(stored, architecture, &content),
                shape,
                dtype,
                file: 0,
                range,
            };
            checkpoint.tensors.insert(name, entry);
        }
        checkpoint.files.push(bytes);
        Ok((checkpoint, content, architecture))
    }
}

/// llama.cpp's converter reorders q and k of Llama (and Mistral, which it calls llama) for its own way of rotating.
fn row_order(stored: &str, architecture: Architecture, content: &Content) -> RowOrder {
    let heads = |key: &str| {
        let value = content.metadata.get(key)?;
        value.to_u32().ok().map(|heads| heads as usize)
    };
    let query_heads = heads("llama.attention.head_count");
    let heads = if stored.contains(".attn_q.") {
        query_heads
    } else if stored.contains(".attn_k.") {
        heads("llama.attention.head_count_kv").or(query_heads)
    } else {
        None
    };
    match heads {
        Some(heads) if heads > 0 && architecture == Architecture::Llama => RowOrder::Interleaved { heads },
        _ => RowOrder::Plain,
    }
}

/// transformers' name for one of llama.cpp's. Tensors that are part of the configuration keep theirs.
fn transformers_name(stored: &str, architecture: Architecture) -> Option<String> {
    match stored {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        "output.weight" => return Some("lm_head.weight".to_owned()),
        "rope_freqs.weight" | "rope_factors_long.weight" | "rope_factors_short.weight" => {
            return Some(stored.to_owned());
        }
        _ => {}
    }
    let mut pieces = stored.strip_prefix("blk.")?.splitn(3, '.');
    let (layer, part, kind) = (pieces.next()?, pieces.next()?, pieces.next()?);
    let layer: u32 = layer.parse().ok()?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let sandwich = matches!(architecture, Architecture::Gemma2 | Architecture::Gemma3);
    let part = match part {
        "attn_norm" => "input_layernorm",
        "post_attention_norm" if sandwich => "post_attention_layernorm",
        "ffn_norm" if sandwich => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if architecture == Architecture::Phi3 => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{part}.{kind}"))
}
