//! Checks the environment of a server: its folders, its user and its kernel.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use toolgate_world::sandbox::{IncompleteSandboxPolicy, SandboxProfile, namespace_obstacle};

use crate::assembly::server_prep::create_folder;
use crate::config::{Config, cache_folder, state_folder};

/// Fields of `/proc/self/uid_map` for a process outside of every user namespace.
const ALL_USER_IDS: [&str; 3] = ["0", "0", "4294967295"];

/// Logs a warning that lists the features that do not work in this environment, such as the
/// sandbox. Logs nothing if all work. `unconfined` is the reason why the server itself is not
/// confined.
pub fn report(config: &Config, unconfined: Option<String>) {
    let mut differences = folder_differences(config);
    if config.sandbox.profile != SandboxProfile::Off
        && let Some(reason) = namespace_obstacle()
    {
        differences.push(match config.sandbox.require {
            IncompleteSandboxPolicy::Best => format!(
                "{reason}, so programs can see all files, processes and networks that this user \
                 can see (`toolgate doctor` lists the remaining layers of the sandbox)"
            ),
            IncompleteSandboxPolicy::Strict => {
                format!("{reason}, so sandbox.require = \"strict\" refuses programs")
            }
        });
    }
    if is_real_root() {
        differences.push(
            "the server runs as root, so file permissions limit neither tools nor programs"
                .to_owned(),
        );
    }
    differences.extend(unconfined.map(|why| format!("the server itself is not confined: {why}")));
    if !differences.is_empty() {
        tracing::warn!("in this environment, {}", differences.join("; "));
    }
}

/// Creates the state folder if it is missing. Returns the reason why the server cannot write to it,
/// or `None` if it can.
pub(crate) fn state_problem() -> Option<String> {
    folder_problem(state_folder(), "state", "XDG_STATE_HOME")
}

fn folder_differences(config: &Config) -> Vec<String> {
    let mut lost_state = Vec::new();
    if config.jobs.to == "state" {
        lost_state.push(match config.fleet.url {
            None => "jobs are unavailable",
            Some(_) => "files of jobs are not kept",
        });
    }
    if config.audit.to == "state" {
        lost_state.push("audit records go to standard error");
    }
    let lost_cache = match config.search.cache.as_str() {
        "user" => vec!["the search index is kept in memory"],
        _ => Vec::new(),
    };
    let cache_problem = folder_problem(cache_folder(), "cache", "XDG_CACHE_HOME");
    [(state_problem(), lost_state), (cache_problem, lost_cache)]
        .into_iter()
        .filter(|(_, lost)| !lost.is_empty())
        .filter_map(|(problem, lost)| Some(format!("{}, so {}", problem?, lost.join(" and "))))
        .collect()
}

/// Creates `folder` if it is missing. Returns the reason why the server cannot write to the folder,
/// or `None` if it can. The reason contains `name`, the purpose of the folder, or `variable`, the
/// environment variable that selects the folder.
fn folder_problem(folder: Option<PathBuf>, name: &str, variable: &str) -> Option<String> {
    let Some(folder) = folder else {
        return Some(format!("neither {variable} nor HOME is an absolute path"));
    };
    create_folder(&folder);
    let problem = access(&folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    let existing = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    // A missing folder could not be created, and the folder above it knows why.
    let problem = access(existing, Access::WRITE_OK).err().unwrap_or(problem);
    let problem = std::io::Error::from(problem);
    Some(format!("the {name} folder {} cannot be written ({problem})", folder.display()))
}

/// Returns true if this process runs as the real root user, and not as root of a user namespace.
#[allow(clippy::disallowed_methods, reason = "a file of the kernel about this process")]
fn is_real_root() -> bool {
    let ids = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && ids.split_whitespace().eq(ALL_USER_IDS)
}
