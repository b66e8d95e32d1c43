//! Checks the program, directory and environment that a call requests, before the program starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use toolgate_contract::{ToolError, Trace};

use super::Settings;
use super::program::{Choice, Scripts, Words};
use super::programs::Programs;
use super::run::{Input, TIMEOUT_MS_MAX};
use super::traced::trace;
use crate::world::processes::{Bounds, Start, refused_variable};

/// The longest grace period, in milliseconds. A longer one could exceed the deadline of the call.
const GRACE_MS_MAX: u64 = 5000;

/// Prepares the program that `input` requests, as a part of the trace `traced`.
pub(super) fn start(
    input: Input,
    words: Words,
    traced: Option<&Trace>,
    programs: &Programs,
) -> Result<Start, ToolError> {
    let Programs { root, processes, settings, .. } = programs;
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
    // Skip folders in `PATH` that programs can write to. Otherwise a program could plant a file
    // under an allowed name.
    let sought = match settings.allow[..] {
        [] => path.clone(),
        [..] => processes.unwritten(&path, root),
    };
    let inside = programs.inside();
    let is_seen = |program: &Path| match &inside {
        None => true,
        // If no sandbox is available, the start itself fails and reports that.
        Some(inside) => processes.shows(inside, program).unwrap_or(true),
    };
    let chosen = Choice { cwd: cwd.as_fd(), path: &sought, scripts, words, is_seen: &is_seen };
    let (mut program, args) = match shell {
        false => (chosen.of(&command, &settings.allow)?, args),
        true if !settings.shell => {
            return Err(ToolError::not_allowed(words.no_scripts()));
        }
        true if command.trim().is_empty() => {
            return Err(ToolError::invalid("/command", "the script is empty"));
        }
        true if command.contains('\0') => {
            return Err(ToolError::invalid("/command", "the script contains a NUL character"));
        }
        true => {
            let sh = chosen.of("sh", &settings.allow)?;
            (sh, ["-c".into(), command, "sh".into()].into_iter().chain(args).collect())
        }
    };
    let mut base = processes.environment(&settings.env_keep, &path);
    trace(&mut base, traced);
    let env = environment(env, base, settings)?;
    let timeout_ms = timeout_ms.unwrap_or(settings.timeout_ms).clamp(1, TIMEOUT_MS_MAX);
    let bounds = bounds(settings, Duration::from_millis(timeout_ms), max_output_bytes);
    let mut inside = inside;
    if !settings.allow.is_empty()
        && let Some(real) = program.real(cwd.as_fd())
    {
        // For an allowed program, start the file that was checked, not a link that may change. Make
        // it visible in the sandbox, because the owner allowed it by name.
        program.path = real;
        inside.iter_mut().for_each(|inside| inside.seen.push(program.path.clone()));
    }
    Ok(Start {
        program,
        args: args.into_iter().map(OsString::from).collect(),
        cwd,
        env,
        stdin: stdin.map(String::into_bytes),
        bounds,
        inside,
    })
}

/// Returns the limits of a program with the timeout `timeout` and at most `output_bytes` shown.
pub(crate) fn bounds(
    settings: &Settings,
    timeout: Duration,
    output_bytes: Option<usize>,
) -> Bounds {
    Bounds {
        timeout,
        grace: Duration::from_millis(settings.grace_ms.min(GRACE_MS_MAX)),
        held_bytes_max: output_bytes
            .unwrap_or(settings.output_bytes)
            .clamp(1, settings.output_bytes_max.max(1)),
        spool_bytes_max: settings.spool_bytes_max,
    }
}

/// Adds the call's variables to `base`, or refuses one that may not be set.
fn environment(
    given: BTreeMap<String, String>,
    mut base: BTreeMap<OsString, OsString>,
    settings: &Settings,
) -> Result<BTreeMap<OsString, OsString>, ToolError> {
    for (name, value) in given {
        let path = if settings.env_path { PathVariable::Free } else { PathVariable::Refused };
        if let Some(why) = refusal(&name, &value, path) {
            let pointer = format!("/env/{}", name.replace('~', "~0").replace('/', "~1"));
            return Err(ToolError::invalid(pointer, format!("`{}` {why}", name.escape_debug())));
        }
        base.insert(name.into(), value.into());
    }
    Ok(base)
}

/// Permission to set `PATH` for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathVariable {
    Free,
    Refused,
}

/// Returns the reason why the variable `name` may not be set to `value`, if there is one.
pub(crate) fn refusal(name: &str, value: &str, path: PathVariable) -> Option<String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Some("is not a name a variable can have".to_owned());
    }
    if value.contains('\0') {
        return Some("has a value with a NUL character in it".to_owned());
    }
    if let Some(why) = refused_variable(name) {
        return Some(format!("may not be set: {why}"));
    }
    (name == "PATH" && path == PathVariable::Refused)
        .then(|| "may not be set here; name the program by its path instead".to_owned())
}
