//! Local folders and files: only what lies inside an allowed root, wherever `..` and links lead.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Files,
    failure::Failure,
    part::too_large,
    wanted::{Kind, RemoteFile},
};

/// Finds `path` inside one of `roots`. A relative path is looked for in each root, then in the working folder.
///
/// # Errors
/// One and the same for what is not there and for what is not allowed: nobody learns what lies outside.
pub(super) fn find(path: &Path, roots: &[PathBuf], kind: Kind, limit: u64) -> Result<Files, Failure> {
    let real_roots: Vec<_> = roots.iter().filter_map(|root| root.canonicalize().ok()).collect();
    let is_inside = |path: &Path| real_roots.iter().any(|root| path.starts_with(root));
    let mut candidates: Vec<_> = real_roots.iter().map(|root| root.join(path)).collect();
    candidates.extend(std::path::absolute(path).ok());
    let found = candidates
        .iter()
        .filter_map(|candidate| candidate.canonicalize().ok())
        .find(|candidate| is_inside(candidate));
    let Some(found) = found else {
        return Err(nothing_there(roots));
    };
    if found.is_dir() {
        check_folder(&found, kind, limit, &is_inside)?;
        return Ok(Files::Folder(found));
    }
    let size = found.metadata().map_or(0, |data| data.len());
    match kind {
        Kind::Model if found.is_file() && found.extension().is_some_and(|extension| extension == "gguf") => {
            if size > limit {
                return Err(too_large(size, limit));
            }
            Ok(Files::Gguf(found))
        }
        Kind::Model => Err(Failure::Refused(
            "it is neither a folder nor a `.gguf` file".to_owned(),
        )),
        Kind::Adapter => Err(Failure::Refused(
            "an adapter is a folder; this is a file".to_owned(),
        )),
    }
}

/// The files of a folder, links followed, with their sizes; none if it cannot be read.
pub(super) fn listing(folder: &Path) -> Option<Vec<RemoteFile>> {
    let items = fs::read_dir(folder).ok()?;
    let file = |item: fs::DirEntry| {
        let data = fs::metadata(item.path()).ok().filter(|data| data.is_file())?;
        Some(RemoteFile {
            name: item.file_name().into_string().ok()?,
            size: Some(data.len()),
            sha256: None,
        })
    };
    Some(items.flatten().filter_map(file).collect())
}

/// Every file in it that is a link must end inside a root as well.
fn check_folder(
    folder: &Path,
    kind: Kind,
    limit: u64,
    is_inside: &dyn Fn(&Path) -> bool,
) -> Result<(), Failure> {
    let files = listing(folder).ok_or_else(|| Failure::Refused("the folder cannot be read".to_owned()))?;
    let stays = |file: &RemoteFile| {
        folder
            .join(&file.name)
            .canonicalize()
            .is_ok_and(|real| is_inside(&real))
    };
    if let Some(file) = files.iter().find(|file| !stays(file)) {
        return Err(Failure::Refused(format!(
            "`{}` in it is a link that leads out of the allowed folders",
            file.name
        )));
    }
    let size = kind.choose(&files)?.iter().filter_map(|file| file.size).sum();
    if size > limit {
        return Err(too_large(size, limit));
    }
    Ok(())
}

fn nothing_there(roots: &[PathBuf]) -> Failure {
    let roots: Vec<_> = roots.iter().map(|root| format!("`{}`", root.display())).collect();
    Failure::NotFound(if roots.is_empty() {
        "no local folder is allowed: the server's configuration names none".to_owned()
    } else {
        format!(
            "there is no such folder or GGUF file inside the allowed folders, {}",
            roots.join(", ")
        )
    })
}
