//! Protected paths of a workspace, which tools and their programs cannot change: settings, schemas,
//! logs, jobs, skills and prompts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::bail;
use toolgate_toolsets::commands::{self, DeclaredCommand};
use toolgate_toolsets::files;
use toolgate_world::sandbox::SandboxPaths;

use crate::assembly::wiring::{jobs_folder, relative_to_root, resolve_links};
use crate::assembly::{audit_setup, envelope_setup};
use crate::config::{Config, cache_folder, state_folder};

/// Returns the settings `config.files` with all protected paths under `root` added, including the
/// files that declare the `declared` commands. Fails if a configured path is invalid.
pub(crate) fn protected_settings(
    root: &Path,
    config: &Config,
    declared: &[DeclaredCommand],
) -> anyhow::Result<files::FileSettings> {
    let mut files = config.files.clone();
    let source = config.source.iter().map(|source| source.file.clone());
    let declarations = declared.iter().map(|command| command.file().to_owned());
    // A new file in a pack folder would declare a command at the next start.
    let packs = declarations.chain(commands::pack_paths(&config.commands, config.source.as_ref()));
    let log = envelope_setup::log_folder(&config.envelope)?;
    // Protect each folder by its configured path and by its real path.
    let schemas = envelope_setup::schema_folders(&config.envelope);
    let real_schemas = config.envelope.schemas.iter().map(|named| root.join(named));
    let records = audit_setup::audit_paths(&config.audit)?;
    let own = audit_setup::secret_paths(config)?;
    let all = source.chain(packs).chain(log).chain(real_schemas).chain(records).chain(own);
    let real_root = resolve_links(root);
    let inside: Vec<String> = all.filter_map(|path| relative_to_root(&real_root, &path)).collect();
    // The folder of jobs may not exist yet.
    let jobs = jobs_folder(root, &config.jobs.to)?
        .and_then(|folder| Some(folder.strip_prefix(&real_root).ok()?.to_str()?.to_owned()));
    inside.into_iter().chain(schemas).chain(jobs).for_each(|path| files.protect(&path));
    // Protect these folders by both paths, too.
    for folder in instruction_folders(config) {
        files.protect_instructions(folder);
        let real = relative_to_root(&real_root, &real_root.join(folder));
        if let Some(real) = real.filter(|real| real != folder) {
            files.protect_instructions(&real);
        }
    }
    Ok(files)
}

/// Returns the folders of skills and prompts that tools and programs may not write, relative to the
/// workspace.
fn instruction_folders(config: &Config) -> impl Iterator<Item = &str> {
    let skills = config.skills.folders.iter().filter(move |_| !config.skills.writable);
    let prompts = config.prompts.folder().filter(move |_| !config.prompts.writable);
    skills.map(String::as_str).chain(prompts)
}

/// Rejects `exec.allow` entries whose file is in a folder that programs can write, because any
/// program could replace the file. `variables` is the environment of the server.
///
/// # Errors
/// The error names the program and the writable folder.
pub(crate) fn check_allowed_programs(
    root: &Path,
    config: &Config,
    variables: &[(OsString, OsString)],
) -> anyhow::Result<()> {
    let home = variables.iter().find(|(name, _)| name == "HOME");
    let home = home.map(|(_, folder)| Path::new(folder)).filter(|folder| folder.is_absolute());
    let writable = config.sandbox.writable_folders(home);
    let writable = writable.iter().map(|folder| resolve_links(folder));
    let writable: Vec<_> = writable.chain([resolve_links(root)]).collect();
    let named = config.exec.allow.iter().map(Path::new).filter(|path| path.is_absolute());
    for program in named {
        let file = resolve_links(program);
        if let Some(folder) = writable.iter().find(|folder| file.starts_with(folder)) {
            bail!(
                "exec.allow has {}, which is in {}, where programs could replace it; move it to a \
                 folder that programs cannot write",
                program.display(),
                folder.display()
            );
        }
    }
    Ok(())
}

/// Returns the paths that the sandbox needs in addition to its settings: program folders, the
/// protected paths of `files`, hidden folders, and the folders of package caches and allowed hosts.
///
/// `variables` is the environment of the server.
pub(crate) fn sandbox_additions(
    config: &Config,
    files: &files::FileSettings,
    declared: &[DeclaredCommand],
    variables: &[(OsString, OsString)],
) -> SandboxPaths {
    let hidden = [state_folder(), cache_folder()].into_iter().flatten();
    let set = |name: &str| {
        let (_, value) = variables.iter().find(|(known, _)| known == name)?;
        Some(value.to_str()?.to_owned())
    };
    // A program that is named by its path may read its own folder.
    let named = declared.iter().filter_map(|command| command.program_path(set));
    let allowed = config.exec.allow.iter().map(PathBuf::from).filter(|path| path.is_absolute());
    // Include both the configured path and the real path.
    let programs = named.chain(allowed).flat_map(|program| [resolve_links(&program), program]);
    let folders = programs.filter_map(|program| Some(program.parent()?.to_str()?.to_owned()));
    SandboxPaths {
        search_paths: folders.collect(),
        guarded: files.protected_names(),
        instructions: files.instructions.clone(),
        hidden: hidden.map(|folder| resolve_existing_links(&folder)).collect(),
        package_caches: cache_folder()
            .map(|folder| resolve_existing_links(&folder).join("packages")),
        allowed_hosts: state_folder()
            .map(|folder| resolve_existing_links(&folder).join("allowed-hosts")),
    }
}

/// Resolves the symbolic links in the beginning of the path `folder` that exists. The server may
/// create the rest of the path later.
fn resolve_existing_links(folder: &Path) -> PathBuf {
    let existing = folder.ancestors().find(|it| it.exists()).unwrap_or(folder);
    let missing = folder.strip_prefix(existing).unwrap_or(Path::new(""));
    resolve_links(existing).components().chain(missing.components()).collect()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests create the folders that are resolved")]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_a_writable_folder_below_the_home_is_not_allowed() {
        let [root, home] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        std::fs::create_dir(home.path().join("tools")).expect("created");
        std::fs::write(home.path().join("tools/build"), "").expect("written");
        let mut config = Config::default();
        config.exec.allow = vec![home.path().join("tools/build").display().to_string()];
        let variables: [(OsString, OsString); 1] = [("HOME".into(), home.path().into())];
        check_allowed_programs(root.path(), &config, &variables).expect("it cannot be replaced");
        config.sandbox.write = vec!["~/tools".to_owned()];
        let refusal = check_allowed_programs(root.path(), &config, &variables);
        let why = refusal.expect_err("programs can replace it").to_string();
        assert!(why.contains("where programs could replace it"), "{why}");
    }

    #[test]
    fn the_links_around_a_missing_folder_are_resolved() {
        let home = tempfile::tempdir().expect("a folder");
        let real = home.path().canonicalize().expect("it exists");
        std::fs::create_dir(real.join("data")).expect("created");
        std::os::unix::fs::symlink(real.join("data"), real.join("link")).expect("created");
        let resolved = resolve_existing_links(&real.join("link/state/toolgate"));
        assert_eq!(resolved, real.join("data/state/toolgate"));
        assert_eq!(resolve_existing_links(&real.join("link")), real.join("data"));
    }
}
