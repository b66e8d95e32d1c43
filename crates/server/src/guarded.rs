//! Protected paths of a workspace, which tools and their programs cannot change: settings, schemas,
//! logs and jobs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::bail;
use toolgate_toolsets::commands::{self, Declared};
use toolgate_toolsets::files;
use toolgate_toolsets::world::sandbox::Beside;

use crate::config::{Config, cache_folder, state_folder};
use crate::wiring::{beneath, jobs_folder, real};
use crate::{enveloping, recording};

/// Returns `config.files` with every protected path under `root` added, those of `declared`
/// commands included.
pub(crate) fn files(
    root: &Path,
    config: &Config,
    declared: &[Declared],
) -> anyhow::Result<files::Settings> {
    let mut files = config.files.clone();
    let source = config.source.iter().map(|source| source.file.clone());
    let declaring = declared.iter().map(|command| command.file().to_owned());
    // A new file in a pack folder would declare a command at the next start.
    let packs = declaring.chain(commands::packs(&config.commands, config.source.as_ref()));
    let log = enveloping::log_folder(&config.envelope)?;
    // Protect each folder by its configured path and by its real path.
    let schemas = enveloping::schema_folders(&config.envelope);
    let real_schemas = config.envelope.schemas.iter().map(|named| root.join(named));
    let records = recording::paths(&config.audit)?;
    let own = recording::own(config)?;
    let all = source.chain(packs).chain(log).chain(real_schemas).chain(records).chain(own);
    let real_root = real(root);
    let inside: Vec<String> = all.filter_map(|path| beneath(&real_root, &path)).collect();
    // The folder of jobs may not exist yet.
    let jobs = jobs_folder(root, &config.jobs.to)?
        .and_then(|folder| Some(folder.strip_prefix(&real_root).ok()?.to_str()?.to_owned()));
    inside.into_iter().chain(schemas).chain(jobs).for_each(|path| files.protect(&path));
    Ok(files)
}

/// Rejects `exec.allow` entries whose file lies in a folder that programs can write, since any
/// program could replace it.
///
/// # Errors
/// Names the program and the writable folder.
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

/// Returns the paths that the sandbox adds to its settings: program folders, the protected paths of
/// `files`, and hidden folders.
///
/// `variables` is the environment of the server.
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
    // A program that is named by its path may read its own folder.
    let named = declared.iter().filter_map(|command| command.place(set));
    let allowed = config.exec.allow.iter().map(PathBuf::from).filter(|path| path.is_absolute());
    // Include both the configured path and the real path.
    let programs = named.chain(allowed).flat_map(|program| [real(&program), program]);
    let folders = programs.filter_map(|program| Some(program.parent()?.to_str()?.to_owned()));
    Beside {
        paths: config.exec.path.iter().cloned().chain(folders).collect(),
        guarded: files.all_protected(),
        hidden: hidden.map(|folder| real(&folder)).collect(),
    }
}
