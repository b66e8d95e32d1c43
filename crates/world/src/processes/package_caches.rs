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

use toolgate_net::spawn_blocking;

use super::ProcessRunner;
use crate::Root;
use crate::forwarder::{FORWARDER_PORT, PackageHostSource};
use crate::sandbox::ProgramConfinement;

/// The number of characters of a workspace's hash that name the folder of its package caches.
const HASH_CHARS: usize = 32;

/// The environment variable with the options of Maven, one of which names the cache folder.
const MAVEN_VARIABLE: &str = "MAVEN_OPTS";

/// The cache that the package managers of one language share, such as pip and uv.
struct PackageCache {
    /// The name of the cache's folder in the workspace's folder of caches.
    name: &'static str,
    sources: &'static [PackageHostSource],
    /// Environment variables that name the cache, and the subfolder that each names.
    variables: &'static [(&'static str, &'static str)],
    /// The environment variable that names the user's own cache, and the default path of that
    /// cache, relative to the home folder.
    own: (&'static str, &'static str),
}

static CACHES: [PackageCache; 6] = [
    PackageCache {
        name: "npm",
        sources: &[
            PackageHostSource::Npm,
            PackageHostSource::Pnpm,
            PackageHostSource::Yarn,
            PackageHostSource::ModernYarn,
        ],
        variables: &[("npm_config_cache", "npm"), ("YARN_CACHE_FOLDER", "yarn")],
        own: ("npm_config_cache", ".npm"),
    },
    PackageCache {
        name: "pypi",
        sources: &[PackageHostSource::Pip, PackageHostSource::Uv],
        variables: &[
            ("PIP_CACHE_DIR", "pip"),
            ("UV_CACHE_DIR", "uv"),
            ("POETRY_CACHE_DIR", "poetry"),
        ],
        own: ("PIP_CACHE_DIR", ".cache/pip"),
    },
    PackageCache {
        name: "cargo",
        sources: &[PackageHostSource::Cargo],
        variables: &[("CARGO_HOME", "")],
        own: ("CARGO_HOME", ".cargo/registry"),
    },
    PackageCache {
        name: "go",
        sources: &[PackageHostSource::Go],
        variables: &[("GOMODCACHE", "")],
        own: ("GOMODCACHE", "go/pkg/mod"),
    },
    PackageCache {
        name: "maven",
        sources: &[PackageHostSource::Maven],
        variables: &[(MAVEN_VARIABLE, "")],
        own: ("", ".m2/repository"),
    },
    PackageCache {
        name: "nuget",
        sources: &[PackageHostSource::Nuget],
        variables: &[("NUGET_PACKAGES", "")],
        own: ("NUGET_PACKAGES", ".nuget/packages"),
    },
];

impl PackageCache {
    /// Returns `true` if one of the package managers `sources` uses this cache.
    fn serves(&self, sources: &[PackageHostSource]) -> bool {
        self.sources.iter().any(|source| sources.contains(source))
    }

    /// Returns the name of the file that exists once the cache has all packages of a project. The
    /// file is beside the cache folder, so that programs cannot create it.
    fn marker(&self) -> String {
        format!("{}.filled", self.name)
    }
}

impl ProcessRunner {
    /// Makes the current caches of the package managers `sources` available to all programs that
    /// may write `workspace`, also without a network. Call this after a program has filled the
    /// caches. Blocks.
    pub fn keep_caches(&self, workspace: &Root, sources: &[PackageHostSource]) {
        let Some(folder) = workspace_folder(self, workspace) else { return };
        for cache in CACHES.iter().filter(|cache| cache.serves(sources)) {
            if folder.join(cache.name).exists()
                && let Err(err) = fs::write(folder.join(cache.marker()), "")
            {
                tracing::warn!("the package cache of {} is not kept: {err}", cache.name);
            }
        }
    }

    /// Returns `true` if [`keep_caches`](Self::keep_caches) has kept a cache for `workspace` that
    /// one of the package managers `sources` uses. Blocks.
    pub fn has_kept_caches(&self, workspace: &Root, sources: &[PackageHostSource]) -> bool {
        let Some(folder) = workspace_folder(self, workspace) else { return false };
        let mut caches = CACHES.iter().filter(|cache| cache.serves(sources));
        caches.any(|cache| folder.join(cache.marker()).exists())
    }
}

/// Adds the caches of the package managers `sources` to the program with `confinement` and `env`,
/// and the caches that were [kept](ProcessRunner::keep_caches). Adds no caches if the program may
/// not write the workspace.
pub(super) async fn add_caches(
    processes: &ProcessRunner,
    confinement: &mut ProgramConfinement,
    env: &mut BTreeMap<OsString, OsString>,
    sources: &[PackageHostSource],
) {
    if !confinement.may_write() || confinement.executables.is_some() {
        return;
    }
    let Some(folder) = workspace_folder(processes, &confinement.workspace) else { return };
    let (workspace, sources) = (confinement.workspace.clone(), sources.to_vec());
    let runner = processes.clone();
    let found = spawn_blocking(move || create_caches(&runner, &workspace, &folder, &sources)).await;
    for (cache, at) in found.unwrap_or_default() {
        for (name, subfolder) in cache.variables {
            let name = OsStr::new(name);
            if name == MAVEN_VARIABLE {
                add_maven_options(env, &at, confinement.hosts.is_some());
                continue;
            }
            let value = match *subfolder {
                "" => at.clone().into_os_string(),
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

/// Creates in `folder` the caches of `sources` that a program in `workspace` uses. Returns each
/// cache with its path. Blocks.
fn create_caches(
    processes: &ProcessRunner,
    workspace: &Root,
    folder: &Path,
    sources: &[PackageHostSource],
) -> Vec<(&'static PackageCache, PathBuf)> {
    let mut created = Vec::new();
    // Most workspaces have no caches, and programs start often.
    if sources.is_empty() && !folder.exists() {
        return created;
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
        if own.is_some_and(|own| sandbox.can_write(workspace, home, &own)) {
            continue;
        }
        if let Err(err) = create_folder(&at) {
            tracing::warn!("the package cache {} cannot be created: {err}", at.display());
            continue;
        }
        if cache.sources.contains(&PackageHostSource::Cargo) {
            link_cargo_settings(processes, &at);
        }
        created.push((cache, at));
    }
    created
}

/// Returns the folder with the package caches of `workspace`. Returns `None` if caches are
/// disabled, or if the folder would be in the workspace, where programs do not see the server's own
/// folders.
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

/// Returns the folder of the user's own cache of packages, outside the sandbox.
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
/// sandbox. Programs can read the settings, and can replace only the links.
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

/// Adds to `env` the options of Maven that name the folder `cache` and, with `has_forwarder`, the
/// forwarder, because Java reads no proxy variables. Options that `env` has already come last, so
/// that they take precedence.
fn add_maven_options(env: &mut BTreeMap<OsString, OsString>, cache: &Path, has_forwarder: bool) {
    let mut options = OsString::new();
    // Maven's start script splits the options at spaces, and knows no quotes.
    if cache.as_os_str().as_encoded_bytes().iter().any(u8::is_ascii_whitespace) {
        tracing::warn!("Maven cannot use the cache {}, which has a space", cache.display());
    } else {
        options.push("-Dmaven.repo.local=");
        options.push(cache);
    }
    let mut add = |option: &str| {
        if !options.is_empty() {
            options.push(" ");
        }
        options.push(option);
    };
    if has_forwarder {
        for scheme in ["http", "https"] {
            add(&format!("-D{scheme}.proxyHost=127.0.0.1"));
            add(&format!("-D{scheme}.proxyPort={FORWARDER_PORT}"));
        }
        add("-Daether.connector.http.useSystemProperties=true");
    }
    let known = env.get(OsStr::new(MAVEN_VARIABLE)).filter(|known| !known.is_empty());
    if let Some(known) = known {
        if !options.is_empty() {
            options.push(" ");
        }
        options.push(known);
    }
    if !options.is_empty() {
        env.insert(MAVEN_VARIABLE.into(), options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_maven(known: &str, cache: &str, has_forwarder: bool, expected: &str) {
        let mut env = BTreeMap::from([(MAVEN_VARIABLE.into(), known.into())]);
        add_maven_options(&mut env, Path::new(cache), has_forwarder);
        assert_eq!(env[OsStr::new(MAVEN_VARIABLE)], expected);
    }

    #[test]
    fn maven_keeps_its_options_and_has_no_cache_if_the_path_has_a_space() {
        let proxy = format!(
            "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort={FORWARDER_PORT} \
             -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort={FORWARDER_PORT} \
             -Daether.connector.http.useSystemProperties=true"
        );
        check_maven("", "/c", false, "-Dmaven.repo.local=/c");
        check_maven("-Xmx1g", "/c", false, "-Dmaven.repo.local=/c -Xmx1g");
        check_maven("-Xmx1g", "/c", true, &format!("-Dmaven.repo.local=/c {proxy} -Xmx1g"));
        check_maven("-Xmx1g", "/a b", false, "-Xmx1g");
        check_maven("-Xmx1g", "/a b", true, &format!("{proxy} -Xmx1g"));
    }
}
