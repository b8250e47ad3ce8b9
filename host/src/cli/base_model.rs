//! Which base model is served and where its files come from.

use std::path::Path;

use heddle_engine::hub::{EmbeddedFiles, Files, Progress, Source, Sources, catalogue};

use super::progress::Terminal;
use crate::{
    config::ModelConfig,
    error::{Error, Result},
};

/// A model that would do, and where to look for it.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// Its name in the API.
    pub name: String,
    /// What it is, where that is known.
    pub description: Option<&'static str>,
    /// Tried in this order.
    pub sources: Vec<Source>,
    /// Adapters that come with it.
    pub adapters: Vec<(&'static str, EmbeddedFiles)>,
}

/// A base model whose files are there.
#[derive(Debug, Clone)]
pub(super) struct BaseModel {
    pub name: String,
    pub description: Option<&'static str>,
    pub files: Files,
    pub adapters: Vec<(&'static str, EmbeddedFiles)>,
    /// What it runs on, in words; set once it is loaded.
    pub device: String,
}

/// The models that would do, the best first: the one that is named, or else the default one and the one in the binary.
pub(super) fn wanted(config: &ModelConfig) -> Result<Vec<Wanted>> {
    match &config.name {
        Some(name) => Ok(vec![named(name)?]),
        None => Ok([catalogue::DEFAULT, catalogue::FALLBACK]
            .into_iter()
            .filter_map(catalogue::find)
            .map(Wanted::from)
            .collect()),
    }
}

impl From<catalogue::Entry> for Wanted {
    fn from(entry: catalogue::Entry) -> Self {
        Self {
            name: entry.name.to_owned(),
            description: Some(entry.description),
            sources: entry.sources,
            adapters: entry.adapters,
        }
    }
}

fn named(name: &str) -> Result<Wanted> {
    if let Some(entry) = catalogue::find(name) {
        return Ok(entry.into());
    }
    let source = source(name)?;
    let name = match &source {
        Source::Hub { repo, .. } => repo.clone(),
        Source::Local(path) => file_name(path),
        Source::S3 { bucket, prefix } => match prefix.rsplit('/').next() {
            Some(last) if !last.is_empty() => last.to_owned(),
            _ => bucket.clone(),
        },
        Source::Wheel { package, .. } => package.clone(),
        Source::Embedded(files) => files.name.to_owned(),
    };
    Ok(Wanted {
        name,
        description: None,
        sources: vec![source],
        adapters: Vec::new(),
    })
}

/// The folder's name, or the GGUF file's without its ending.
fn file_name(path: &Path) -> String {
    let name = if path.extension().is_some_and(|extension| extension == "gguf") {
        path.file_stem()
    } else {
        path.file_name()
    };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A source as an operator writes it: a relative path is relative to the working directory.
pub(super) fn source(text: &str) -> Result<Source> {
    Ok(match text.parse()? {
        Source::Local(path) => {
            let absolute = std::path::absolute(&path).map_err(|source| Error::Io { path, source })?;
            Source::Local(absolute)
        }
        other => other,
    })
}

/// Fetches the first of `wanted` that is in reach.
///
/// # Errors
/// What the last source said.
pub(super) fn fetch(sources: &Sources, wanted: Vec<Wanted>) -> Result<BaseModel> {
    let progress = Terminal::new();
    let mut failure = None;
    let mut left = wanted.into_iter().peekable();
    while let Some(model) = left.next() {
        let mut places = model.sources.iter().peekable();
        while let Some(source) = places.next() {
            match sources.fetch_model(source, &progress) {
                Ok(files) => {
                    return Ok(BaseModel {
                        name: model.name,
                        description: model.description,
                        files,
                        adapters: model.adapters,
                        device: String::new(),
                    });
                }
                Err(error) => {
                    if let Some(next) = places.peek() {
                        progress.say(&format!("{error}; trying {next}"));
                    } else if let Some(next) = left.peek() {
                        progress.say(&format!(
                            "{error}; `{}` is out of reach, serving `{}` in its place",
                            model.name, next.name
                        ));
                    }
                    failure = Some(error);
                }
            }
        }
    }
    Err(failure.map_or_else(
        || Error::Config("no model is named and none is known".to_owned()),
        Error::Engine,
    ))
}

/// The size of a model's weights in bytes.
pub(super) fn size(files: &Files) -> u64 {
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    match files {
        Files::Embedded(set) => set.files.iter().map(|(_, bytes)| bytes.len() as u64).sum(),
        Files::Gguf(path) => length(path),
        Files::Folder(folder) => std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "safetensors")
            })
            .map(|path| length(&path))
            .sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: Option<&str>) -> ModelConfig {
        ModelConfig {
            name: name.map(str::to_owned),
            ..ModelConfig::default()
        }
    }

    #[test]
    fn without_a_name_the_embedded_model_is_the_last_resort() {
        let names: Vec<_> = wanted(&config(None))
            .unwrap()
            .into_iter()
            .map(|model| model.name)
            .collect();
        assert_eq!(names, [catalogue::DEFAULT, catalogue::FALLBACK]);
    }

    #[test]
    fn a_model_is_called_after_its_source() {
        for (text, name) in [
            ("pocket", "pocket"),
            ("org/model", "org/model"),
            ("hub:org/model@main", "org/model"),
            ("./some/folder", "folder"),
            ("/models/tiny.Q4.gguf", "tiny.Q4"),
            ("s3://bucket/models/tiny", "tiny"),
        ] {
            let wanted = wanted(&config(Some(text))).unwrap();
            assert_eq!(wanted.len(), 1, "a model that is named has no substitute");
            assert_eq!(wanted[0].name, name, "{text}");
        }
        assert!(wanted(&config(Some("no-such-model"))).is_err());
    }
}
