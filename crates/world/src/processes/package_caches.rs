//! The caches of package managers, in toolgate's own cache folder.
//!
//! Programs do not see the home folder, in which package managers keep their caches. The programs
//! of each workspace therefore share caches of their own, so that a project cannot change the
//! packages of another.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use super::ProcessRunner;
use crate::Root;
use crate::forwarder::{FORWARDER_PORT, HostSource};
use crate::sandbox::ProgramConfinement;

/// The number of characters of a workspace's hash that name the folder of its package caches.
const HASH_CHARS: usize = 32;

/// The cache of package managers that share a language.
struct PackageCache {
    /// The name of the cache's folder.
    name: &'static str,
    sources: &'static [HostSource],
    /// Environment variables that name the cache, and the subfolder that each names.
    variables: &'static [(&'static str, &'static str)],
    /// An environment variable that names the user's own cache, and the usual place of that cache
    /// in the home folder.
    own: (&'static str, &'static str),
}

const CACHES: [PackageCache; 6] = [
    PackageCache {
        name: "npm",
        sources: &[HostSource::Npm, HostSource::Pnpm, HostSource::Yarn, HostSource::ModernYarn],
        variables: &[("npm_config_cache", "npm"), ("YARN_CACHE_FOLDER", "yarn")],
        own: ("npm_config_cache", ".npm"),
    },
    PackageCache {
        name: "pypi",
        sources: &[HostSource::Pip, HostSource::Uv],
        variables: &[
            ("PIP_CACHE_DIR", "pip"),
            ("UV_CACHE_DIR", "uv"),
            ("POETRY_CACHE_DIR", "poetry"),
        ],
        own: ("PIP_CACHE_DIR", ".cache/pip"),
    },
    PackageCache {
        name: "cargo",
        sources: &[HostSource::Cargo],
        variables: &[("CARGO_HOME", "")],
        own: ("CARGO_HOME", ".cargo/registry"),
    },
    PackageCache {
        name: "go",
        sources: &[HostSource::Go],
        variables: &[("GOMODCACHE", "")],
        own: ("GOMODCACHE", "go/pkg/mod"),
    },
    PackageCache {
        name: "maven",
        sources: &[HostSource::Maven],
        variables: &[("MAVEN_OPTS", "")],
        own: ("", ".m2/repository"),
    },
    PackageCache {
        name: "nuget",
        sources: &[HostSource::Nuget],
        variables: &[("NUGET_PACKAGES", "")],
        own: ("NUGET_PACKAGES", ".nuget/packages"),
    },
];

impl PackageCache {
    /// Returns `true` if one of the package managers `sources` uses this cache.
    fn serves(&self, sources: &[HostSource]) -> bool {
        self.sources.iter().any(|source| sources.contains(source))
    }

    /// Returns the name of the file that exists once the cache has all packages of a project. It is
    /// beside the cache, so that programs cannot create it.
    fn marker(&self) -> String {
        format!("{}.filled", self.name)
    }
}

impl ProcessRunner {
    /// Makes all programs that may write `workspace` use the caches of the package managers
    /// `sources`, also without a network. Call this after a program has filled the caches. Blocks.
    pub fn keep_caches(&self, workspace: &Root, sources: &[HostSource]) {
        let Some(folder) = workspace_folder(self, workspace) else { return };
        for cache in CACHES.iter().filter(|cache| cache.serves(sources)) {
            if folder.join(cache.name).exists()
                && let Err(err) = fs::write(folder.join(cache.marker()), "")
            {
                tracing::warn!("the package cache of {} is not kept: {err}", cache.name);
            }
        }
    }
}

/// Adds the caches of the package managers `sources` to the program with `confinement` and `env`,
/// and the caches that were [kept](ProcessRunner::keep_caches). A program that may not write the
/// workspace gets none.
pub(super) fn add_caches(
    processes: &ProcessRunner,
    confinement: &mut ProgramConfinement,
    env: &mut BTreeMap<OsString, OsString>,
    sources: &[HostSource],
) {
    if !confinement.may_write() || confinement.executables.is_some() {
        return;
    }
    let Some(folder) = workspace_folder(processes, &confinement.workspace) else { return };
    // Most workspaces have no caches, and programs start often.
    if sources.is_empty() && !folder.exists() {
        return;
    }
    let home = processes.variable("HOME").map(Path::new);
    for cache in &CACHES {
        let at = folder.join(cache.name);
        if !cache.serves(sources) && !folder.join(cache.marker()).exists() {
            continue;
        }
        // `sandbox.write` may contain the user's own cache.
        let own = own_cache(processes, cache);
        let sandbox = processes.sandbox();
        if own.is_some_and(|own| sandbox.can_write(&confinement.workspace, home, &own)) {
            continue;
        }
        if let Err(err) = create_folder(&at) {
            tracing::warn!("the package cache {} cannot be created: {err}", at.display());
            continue;
        }
        if cache.sources.contains(&HostSource::Cargo) {
            link_cargo_settings(processes, &at);
        }
        for (name, subfolder) in cache.variables {
            let name = OsStr::new(name);
            let value = match name.to_str() {
                Some("MAVEN_OPTS") => maven_options(&at, confinement.hosts.is_some()),
                _ if subfolder.is_empty() => at.clone().into_os_string(),
                _ => at.join(subfolder).into_os_string(),
            };
            // A value that differs from the server's own was chosen for this program.
            let is_chosen =
                env.get(name).is_some_and(|chosen| Some(&**chosen) != variable(processes, name));
            if !is_chosen {
                env.insert(name.to_owned(), value);
            }
        }
        confinement.cache_folders.push(at);
    }
}

/// Returns the folder with the package caches of the workspace. `None` if there are none, or if the
/// folder is in the workspace, in which programs do not see the server's own folders.
fn workspace_folder(processes: &ProcessRunner, workspace: &Root) -> Option<PathBuf> {
    let workspace = workspace.path();
    let caches = processes.sandbox().paths().package_caches.clone()?;
    let hash = blake3::hash(workspace.as_os_str().as_encoded_bytes()).to_hex();
    let folder = caches.join(&hash[..HASH_CHARS]);
    (!folder.starts_with(workspace)).then_some(folder)
}

fn variable<'p>(processes: &'p ProcessRunner, name: &OsStr) -> Option<&'p OsStr> {
    processes.variables().get(name).map(OsString::as_os_str)
}

/// Returns the folder with the user's own cache of packages.
fn own_cache(processes: &ProcessRunner, cache: &PackageCache) -> Option<PathBuf> {
    let (name, usual) = cache.own;
    let named = processes.variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    // Cargo keeps packages in a subfolder of the folder that its variable names.
    let named = named.map(|folder| match cache.name {
        "cargo" => folder.join("registry"),
        _ => folder,
    });
    named.or_else(|| Some(Path::new(processes.variable("HOME")?).join(usual)))
}

/// Creates the folder `at`, which only this user can read.
fn create_folder(at: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(at)
}

/// Links the user's settings of cargo into `folder`, the folder that replaces cargo's home in the
/// sandbox. Programs see the settings, and could replace only the links.
fn link_cargo_settings(processes: &ProcessRunner, folder: &Path) {
    let own = processes.variable("CARGO_HOME").map(PathBuf::from);
    let usual = || Some(Path::new(processes.variable("HOME")?).join(".cargo"));
    let Some(own) = own.filter(|own| own.is_absolute()).or_else(usual) else { return };
    for name in ["config.toml", "config"] {
        let (link, target) = (folder.join(name), own.join(name));
        if fs::read_link(&link).is_ok_and(|to| to == target) {
            continue;
        }
        // A missing link is the usual case, and a folder stays as it is.
        let _ = fs::remove_file(&link);
        if target.exists()
            && let Err(err) = symlink(&target, &link)
        {
            tracing::warn!("cargo's settings cannot be linked to {}: {err}", link.display());
        }
    }
}

/// Returns the options of Maven that name its cache and, if it has one, the forwarder. Java reads
/// no proxy variables.
fn maven_options(cache: &Path, has_forwarder: bool) -> OsString {
    let mut options = OsString::from("-Dmaven.repo.local=");
    options.push(cache);
    if !has_forwarder {
        return options;
    }
    for scheme in ["http", "https"] {
        options.push(format!(" -D{scheme}.proxyHost=127.0.0.1"));
        options.push(format!(" -D{scheme}.proxyPort={FORWARDER_PORT}"));
    }
    options.push(" -Daether.connector.http.useSystemProperties=true");
    options
}
