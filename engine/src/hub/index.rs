//! A Python package index: which files a package has, by PEP 691 (JSON) or PEP 503 (HTML).

use reqwest::Url;
use serde::Deserialize;

use super::{failure::Failure, http::Reply, source::is_sha256};

/// What is asked for: JSON, or HTML where an index knows nothing else.
pub(super) const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.1";

/// A file of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Distribution {
    pub(super) filename: String,
    pub(super) url: Url,
    pub(super) sha256: Option<String>,
    pub(super) size: Option<u64>,
}

#[derive(Deserialize)]
struct Page {
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: std::collections::BTreeMap<String, String>,
    size: Option<u64>,
}

/// A package's name as indexes write it: <https://packaging.python.org/en/latest/specifications/name-normalization/>.
pub(super) fn normalise(name: &str) -> String {
    let mut normal = String::new();
    for c in name.chars() {
        match c {
            '.' | '_' | '-' if normal.ends_with('-') => {}
            '.' | '_' | '-' => normal.push('-'),
            c => normal.push(c.to_ascii_lowercase()),
        }
    }
    normal
}

/// Reads a package's page.
pub(super) fn distributions(page: &Reply) -> Result<Vec<Distribution>, Failure> {
    if page.content_type.contains("json") {
        from_json(page)
    } else {
        Ok(from_html(page))
    }
}

/// The wheels of exactly this version, those for every machine first.
pub(super) fn wheels(all: Vec<Distribution>, package: &str, version: &str) -> Vec<Distribution> {
    let mut wheels: Vec<_> = all
        .into_iter()
        .filter(|file| is_wheel_of(&file.filename, package, version))
        .collect();
    wheels.sort_by_key(|file| (!file.filename.ends_with("-none-any.whl"), file.filename.clone()));
    wheels
}

/// `name-version(-build)?-python-abi-platform.whl`, PEP 427.
fn is_wheel_of(filename: &str, package: &str, version: &str) -> bool {
    let Some(stem) = filename.strip_suffix(".whl") else {
        return false;
    };
    let parts: Vec<_> = stem.split('-').collect();
    matches!(parts.len(), 5 | 6)
        && normalise(parts[0]) == normalise(package)
        && parts[1].eq_ignore_ascii_case(version)
}

fn from_json(page: &Reply) -> Result<Vec<Distribution>, Failure> {
    let read: Page = serde_json::from_slice(&page.body)
        .map_err(|error| Failure::Refused(format!("the index did not answer as PEP 691 says: {error}")))?;
    let file = |file: File| {
        Some(Distribution {
            url: page.url.join(&file.url).ok()?,
            filename: file.filename,
            sha256: file
                .hashes
                .get("sha256")
                .map(|digest| digest.to_ascii_lowercase()),
            size: file.size,
        })
    };
    Ok(read.files.into_iter().filter_map(file).collect())
}

/// The anchors of the page: the text is the file's name, the fragment of the link its hash.
fn from_html(page: &Reply) -> Vec<Distribution> {
    let text = String::from_utf8_lossy(&page.body);
    let anchor = |piece: &str| {
        let (tag, rest) = piece.split_once('>')?;
        let (filename, _) = rest.split_once('<')?;
        let (_, link) = tag.split_once("href=")?;
        let quote = link.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let link = link[1..].split(quote).next()?.replace("&amp;", "&");
        let mut url = page.url.join(&link).ok()?;
        let sha256 = url
            .fragment()
            .and_then(|fragment| fragment.strip_prefix("sha256="))
            .map(str::to_ascii_lowercase)
            .filter(|digest| is_sha256(digest));
        url.set_fragment(None);
        Some(Distribution {
            filename: filename.trim().to_owned(),
            url,
            sha256,
            size: None,
        })
    };
    text.split("<a ").skip(1).filter_map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(content_type: &str, body: &str) -> Reply {
        Reply {
            body: body.as_bytes().to_vec(),
            url: Url::parse("https://index.example/simple/some-package/").unwrap(),
            content_type: content_type.to_owned(),
        }
    }

    #[test]
    fn names_are_normalised() {
        // The examples of the specification.
        for name in [
            "friendly-bard",
            "Friendly-Bard",
            "FRIENDLY-BARD",
            "friendly.bard",
            "friendly--bard",
            "FrIeNdLy-._.-bArD",
        ] {
            assert_eq!(normalise(name), "friendly-bard");
        }
    }

    #[test]
    fn both_kinds_of_page_say_the_same() {
        let digest = "ab".repeat(32);
        let json = page(
            "application/vnd.pypi.simple.v1+json",
            &format!(
                r#"{{"files": [{{"filename": "some_package-1.0-py3-none-any.whl", "url": "../../files/w.whl", "hashes": {{"sha256": "{digest}"}}}}]}}"#
            ),
        );
        let html = page(
            "text/html; charset=utf-8",
            &format!(
                r#"<html><body><a href="../../files/w.whl#sha256={digest}" data-requires-python="&gt;=3.9">some_package-1.0-py3-none-any.whl</a></body>"#
            ),
        );
        let expected = vec![Distribution {
            filename: "some_package-1.0-py3-none-any.whl".to_owned(),
            url: Url::parse("https://index.example/files/w.whl").unwrap(),
            sha256: Some(digest),
            size: None,
        }];
        assert_eq!(distributions(&json).unwrap(), expected);
        assert_eq!(distributions(&html).unwrap(), expected);
    }

    #[test]
    fn only_wheels_of_the_exact_version_count_and_universal_ones_come_first() {
        let names = [
            "some_package-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
            "some_package-1.0-py3-none-any.whl",
            "some_package-1.0.1-py3-none-any.whl",
            "some_package-1.0.tar.gz",
            "some_package_more-1.0-py3-none-any.whl",
        ];
        let all = names.map(|name| Distribution {
            filename: name.to_owned(),
            url: Url::parse("https://index.example/x").unwrap(),
            sha256: None,
            size: None,
        });
        let wheels = wheels(all.to_vec(), "Some.Package", "1.0");
        let found: Vec<_> = wheels.iter().map(|wheel| wheel.filename.as_str()).collect();
        assert_eq!(found, [names[1], names[0]]);
    }
}
