//! What of a folder that is served its tools and their programs do not change: what steers or
//! holds them, and what is kept of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::bail;
use toolgate_toolsets::commands::{self, Declared};
use toolgate_toolsets::files;
use toolgate_toolsets::world::sandbox::Beside;

use crate::config::{Config, cache_folder, state_folder};
use crate::wiring::{beneath, jobs_folder, real};
use crate::{enveloping, recording};

/// `config.files` with all that is protected in `root` beside, `declared` among it.
pub(crate) fn files(
    root: &Path,
    config: &Config,
    declared: &[Declared],
) -> anyhow::Result<files::Settings> {
    let mut files = config.files.clone();
    let source = config.source.iter().map(|source| source.file.clone());
    let declaring = declared.iter().map(|command| command.file().to_owned());
    // What is put beside them in a folder would declare something with the next start.
    let packs = declaring.chain(commands::packs(&config.commands, config.source.as_ref()));
    let log = enveloping::log_folder(&config.envelope)?;
    // As they are named, and where they lie.
    let schemas = enveloping::schema_folders(&config.envelope);
    let real_schemas = config.envelope.schemas.iter().map(|named| root.join(named));
    let records = recording::paths(&config.audit)?;
    let own = recording::own(config)?;
    let all = source.chain(packs).chain(log).chain(real_schemas).chain(records).chain(own);
    let real_root = real(root);
    let inside: Vec<String> = all.filter_map(|path| beneath(&real_root, &path)).collect();
    // It need not be there yet.
    let jobs = jobs_folder(root, &config.jobs.to)?
        .and_then(|folder| Some(folder.strip_prefix(&real_root).ok()?.to_str()?.to_owned()));
    inside.into_iter().chain(schemas).chain(jobs).for_each(|path| files.protect(&path));
    Ok(files)
}

/// Refuses programs that `config` allows by name of a file which programs can write: any of them
/// could put another in its place.
///
/// # Errors
/// Which it is, and where.
pub(crate) fn check_allowed(root: &Path, config: &Config) -> anyhow::Result<()> {
    let writable = config.sandbox.write.iter().map(|folder| real(Path::new(folder)));
    let writable: Vec<_> = writable.chain([real(root)]).collect();
    let named = config.exec.allow.iter().map(Path::new).filter(|path| path.is_absolute());
    for program in named {
        let file = real(program);
        if let Some(folder) = writable.iter().find(|folder| file.starts_with(folder)) {
            bail!(
                "exec.allow has {}, which lies in {}: programs could put another in its place. \
                 Keep what is allowed where nothing is written",
                program.display(),
                folder.display()
            );
        }
    }
    Ok(())
}

/// What is said of programs by a server with the environment `variables`, where `files` is what is
/// protected.
pub(crate) fn beside(
    config: &Config,
    files: &files::Settings,
    declared: &[Declared],
    variables: &[(OsString, OsString)],
) -> Beside {
    let hidden = [state_folder(), cache_folder()].into_iter().flatten();
    let set = |name: &str| {
        let (_, value) = variables.iter().find(|(known, _)| known == name)?;
        Some(value.to_str()?.to_owned())
    };
    // What is around a program that is named by its place is for it.
    let named = declared.iter().filter_map(|command| command.place(set));
    let allowed = config.exec.allow.iter().map(PathBuf::from).filter(|path| path.is_absolute());
    // Where it is named, and where it lies.
    let programs = named.chain(allowed).flat_map(|program| [real(&program), program]);
    let folders = programs.filter_map(|program| Some(program.parent()?.to_str()?.to_owned()));
    Beside {
        paths: config.exec.path.iter().cloned().chain(folders).collect(),
        guarded: files.all_protected(),
        hidden: hidden.map(|folder| real(&folder)).collect(),
    }
}
