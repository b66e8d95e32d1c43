//! What a call asks to be run, looked up and checked: its program, directory and environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::time::Duration;

use toolgate_contract::ToolError;

use super::Settings;
use super::program::{Scripts, choose};
use super::run::{Input, TIMEOUT_MS_MAX};
use crate::world::processes::{Bounds, Start, refused_variable};
use crate::world::{Processes, Root};

/// More would take a program past the deadline of its call.
const GRACE_MS_MAX: u64 = 5000;

/// The program `input` asks for, ready to be started.
pub(super) fn start(
    input: Input,
    root: &Root,
    processes: &Processes,
    settings: &Settings,
) -> Result<Start, ToolError> {
    let Input { command, args, shell, cwd, env, stdin, timeout_ms, max_output_bytes } = input;
    let path = processes.path(settings.path.as_deref());
    let cwd = root.open_dir(cwd.as_deref().unwrap_or(".")).map_err(|err| err.at("/cwd"))?;
    if let Some(at) = args.iter().position(|arg| arg.contains('\0')) {
        return Err(ToolError::invalid(
            format!("/args/{at}"),
            "the argument contains a NUL character",
        ));
    }
    let scripts = Scripts::of(settings);
    let (program, args) = match shell {
        false => (choose(&command, cwd.as_fd(), &path, &settings.allow, scripts)?, args),
        true if !settings.shell => {
            let message = "scripts may not be run here; name a program in `command`, its arguments \
                in `args`, and leave `shell` out";
            return Err(ToolError::not_allowed(message));
        }
        true if command.trim().is_empty() => {
            return Err(ToolError::invalid("/command", "the script is empty"));
        }
        true if command.contains('\0') => {
            return Err(ToolError::invalid("/command", "the script contains a NUL character"));
        }
        true => {
            let sh = choose("sh", cwd.as_fd(), &path, &settings.allow, scripts)?;
            (sh, ["-c".into(), command, "sh".into()].into_iter().chain(args).collect())
        }
    };
    let env = environment(env, processes.environment(&settings.env_keep, &path), settings)?;
    let timeout_ms = timeout_ms.unwrap_or(settings.timeout_ms).clamp(1, TIMEOUT_MS_MAX);
    let bounds = Bounds {
        timeout: Duration::from_millis(timeout_ms),
        grace: Duration::from_millis(settings.grace_ms.min(GRACE_MS_MAX)),
        held_bytes_max: max_output_bytes
            .unwrap_or(settings.output_bytes)
            .clamp(1, settings.output_bytes_max.max(1)),
        spool_bytes_max: settings.spool_bytes_max,
    };
    Ok(Start {
        program,
        args: args.into_iter().map(OsString::from).collect(),
        cwd,
        env,
        stdin: stdin.map(String::into_bytes),
        bounds,
    })
}

/// `base` with what the call gives, unless it gives what it may not.
fn environment(
    given: BTreeMap<String, String>,
    mut base: BTreeMap<OsString, OsString>,
    settings: &Settings,
) -> Result<BTreeMap<OsString, OsString>, ToolError> {
    for (name, value) in given {
        let invalid = |why: &str| {
            let pointer = format!("/env/{}", name.replace('~', "~0").replace('/', "~1"));
            Err(ToolError::invalid(pointer, format!("`{}` {why}", name.escape_debug())))
        };
        if name.is_empty() || name.contains(['=', '\0']) {
            return invalid("is not a name a variable can have");
        }
        if value.contains('\0') {
            return invalid("has a value with a NUL character in it");
        }
        if let Some(why) = refused_variable(&name) {
            return invalid(&format!("may not be set: {why}"));
        }
        if name == "PATH" && !settings.env_path {
            return invalid("may not be set here; name the program by its path instead");
        }
        base.insert(name.into(), value.into());
    }
    Ok(base)
}
