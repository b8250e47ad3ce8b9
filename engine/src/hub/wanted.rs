//! Which of a source's files make a model or an adapter.

use std::collections::BTreeSet;

use super::{
    cache::is_plain_name,
    failure::{Failure, some_names},
};

/// What is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    Adapter,
}

/// A file at a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteFile {
    pub(super) name: String,
    pub(super) size: Option<u64>,
    pub(super) sha256: Option<String>,
}

pub(super) const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// What loading a model may read beside its weights. Everything else in a repository is left where it is.
const MODEL: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

impl Kind {
    /// Its name, in keys of the cache and in sentences.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Adapter => "adapter",
        }
    }

    /// The file without which a folder is none of this kind.
    pub(super) fn config(self) -> &'static str {
        match self {
            Self::Model => "config.json",
            Self::Adapter => ADAPTER[0],
        }
    }

    /// The files to fetch, of those that are there. With [`INDEX`] among them, the shards that it names come on top.
    pub(super) fn choose(self, there: &[RemoteFile]) -> Result<Vec<RemoteFile>, Failure> {
        let find = |name: &str| there.iter().find(|file| file.name == name).cloned();
        let names = || some_names(there.iter().map(|file| file.name.as_str()));
        if find(self.config()).is_none() {
            return Err(Failure::Refused(format!(
                "it has no `{}`, so it is no {} that can be read; it holds {}",
                self.config(),
                self.name(),
                names()
            )));
        }
        let weights = match self {
            Self::Model => find(WEIGHTS).or_else(|| find(INDEX)),
            Self::Adapter => find(ADAPTER[1]),
        };
        let Some(weights) = weights else {
            return Err(Failure::Refused(format!(
                "its weights are not in the safetensors format, the only one that is read from a folder; it holds {}",
                names()
            )));
        };
        let rest: &[&str] = match self {
            Self::Model => &MODEL,
            Self::Adapter => &ADAPTER[..1],
        };
        let mut chosen: Vec<_> = rest.iter().filter_map(|name| find(name)).collect();
        chosen.push(weights);
        Ok(chosen)
    }
}

/// The shards that an index names: the values of `weight_map`.
pub(super) fn shards(index: &[u8], there: &[RemoteFile]) -> Result<Vec<RemoteFile>, Failure> {
    let index: serde_json::Value = serde_json::from_slice(index)
        .map_err(|error| Failure::Refused(format!("`{INDEX}` is not JSON: {error}")))?;
    let names: Option<BTreeSet<&str>> = index
        .get("weight_map")
        .and_then(|map| map.as_object())
        .and_then(|map| map.values().map(|file| file.as_str()).collect());
    let Some(names) = names.filter(|names| !names.is_empty()) else {
        return Err(Failure::Refused(format!(
            "`{INDEX}` has no `weight_map` from tensors to files"
        )));
    };
    names
        .into_iter()
        .map(|name| {
            let found = there.iter().find(|file| file.name == name).cloned();
            found
                .filter(|file| is_plain_name(&file.name) && name.ends_with(".safetensors"))
                .ok_or_else(|| {
                    Failure::Refused(format!("`{INDEX}` names a shard that is not there: `{name}`"))
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Vec<RemoteFile> {
        let file = |name: &&str| RemoteFile {
            name: (*name).to_owned(),
            size: None,
            sha256: None,
        };
        names.iter().map(file).collect()
    }

    fn names(files: &[RemoteFile]) -> Vec<&str> {
        files.iter().map(|file| file.name.as_str()).collect()
    }

    #[test]
    fn a_model_is_its_configuration_tokenizer_and_safetensors() {
        let there = listing(&[
            "README.md",
            "config.json",
            "model.safetensors",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "tokenizer.json",
            "training_args.bin",
        ]);
        let chosen = Kind::Model.choose(&there).unwrap();
        assert_eq!(
            names(&chosen),
            ["config.json", "tokenizer.json", "model.safetensors"]
        );
    }

    #[test]
    fn shards_come_through_the_index() {
        let there = listing(&[
            "config.json",
            INDEX,
            "model-1.safetensors",
            "model-2.safetensors",
            "other.safetensors",
        ]);
        assert_eq!(
            names(&Kind::Model.choose(&there).unwrap()),
            ["config.json", INDEX]
        );
        let index = br#"{"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}}"#;
        assert_eq!(
            names(&shards(index, &there).unwrap()),
            ["model-1.safetensors", "model-2.safetensors"]
        );
        for wrong in [
            r#"{"weight_map": {"a": "../model-1.safetensors"}}"#,
            r#"{"weight_map": {"a": "model-3.safetensors"}}"#,
            r#"{"weight_map": {"a": "config.json"}}"#,
            r#"{"weight_map": {}}"#,
            "nothing",
        ] {
            assert!(
                matches!(shards(wrong.as_bytes(), &there), Err(Failure::Refused(_))),
                "{wrong}"
            );
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_what_is_there() {
        for (kind, there) in [
            (Kind::Adapter, vec!["adapter_config.json", "adapter_model.bin"]),
            (Kind::Model, vec!["config.json", "pytorch_model.bin"]),
            (
                Kind::Model,
                vec!["adapter_config.json", "adapter_model.safetensors"],
            ),
        ] {
            let Err(Failure::Refused(reason)) = kind.choose(&listing(&there)) else {
                panic!("{there:?}");
            };
            assert!(reason.contains(there[1]), "{reason}");
        }
    }
}
