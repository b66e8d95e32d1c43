//! Checks the program, directory and environment that a call requests, before the program starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use toolgate_contract::{ToolError, TraceContext};

use super::ExecSettings;
use super::program::{InputFields, ProgramChooser, ScriptPermission};
use super::programs::WorkspacePrograms;
use super::run::{RunProgramInput, TIMEOUT_MS_MAX};
use super::trace_variables::set_trace_variables;
use toolgate_world::processes::{ProgramStart, RunLimits, refused_variable};

/// The longest grace period, in milliseconds. A longer one could exceed the deadline of the call.
const GRACE_MS_MAX: u64 = 5000;

/// Prepares the program that `input` requests, as a part of `trace`.
pub(super) fn prepare_start(
    input: RunProgramInput,
    fields: InputFields,
    trace: Option<&TraceContext>,
    programs: &WorkspacePrograms,
) -> Result<ProgramStart, ToolError> {
    let WorkspacePrograms { root, processes, settings, .. } = programs;
    let RunProgramInput { command, args, shell, cwd, env, stdin, timeout_ms, max_output_bytes } =
        input;
    let path = processes.search_path(settings.path.as_deref());
    let cwd =
        root.open_dir(cwd.as_deref().unwrap_or(".")).map_err(|err| err.with_pointer("/cwd"))?;
    if let Some(at) = args.iter().position(|arg| arg.contains('\0')) {
        return Err(ToolError::invalid(
            format!("/args/{at}"),
            "the argument contains a NUL character",
        ));
    }
    let scripts = ScriptPermission::from_settings(settings);
    // Skip folders in `PATH` that programs can write to. Otherwise a program could plant a file
    // under an allowed name.
    let search_path = match settings.allow[..] {
        [] => path.clone(),
        [..] => processes.unwritable_path(&path, root),
    };
    let confinement = programs.confinement();
    let is_visible = |program: &Path| match &confinement {
        None => true,
        // If no sandbox is available, the start itself fails and reports that.
        Some(confinement) => processes.shows_file(confinement, program).unwrap_or(true),
    };
    let chooser = ProgramChooser {
        cwd: cwd.as_fd(),
        path: &search_path,
        scripts,
        fields,
        is_visible: &is_visible,
    };
    let (mut program, args) = match shell {
        false => (chooser.find_allowed(&command, &settings.allow)?, args),
        true if !settings.shell => {
            return Err(ToolError::not_allowed(fields.no_scripts_message()));
        }
        true if command.trim().is_empty() => {
            return Err(ToolError::invalid("/command", "the script is empty"));
        }
        true if command.contains('\0') => {
            return Err(ToolError::invalid("/command", "the script contains a NUL character"));
        }
        true => {
            let sh = chooser.find_allowed("sh", &settings.allow)?;
            (sh, ["-c".into(), command, "sh".into()].into_iter().chain(args).collect())
        }
    };
    let mut base = processes.environment(&settings.env_keep, &path);
    set_trace_variables(&mut base, trace);
    let env = environment(env, base, settings)?;
    let timeout_ms = timeout_ms.unwrap_or(settings.timeout_ms).clamp(1, TIMEOUT_MS_MAX);
    let bounds = bounds(settings, Duration::from_millis(timeout_ms), max_output_bytes);
    let mut confinement = confinement;
    if !settings.allow.is_empty()
        && let Some(real) = program.real_path(cwd.as_fd())
    {
        // For an allowed program, start the file that was checked, not a link that may change. Make
        // it visible in the sandbox, because the owner allowed it by name.
        program.path = real;
        confinement.iter_mut().for_each(|it| it.visible_paths.push(program.path.clone()));
    }
    Ok(ProgramStart {
        program,
        args: args.into_iter().map(OsString::from).collect(),
        cwd,
        env,
        stdin: stdin.map(String::into_bytes),
        bounds,
        confinement,
    })
}

/// Returns the limits of a program with the timeout `timeout` and at most `output_bytes` shown.
pub(crate) fn bounds(
    settings: &ExecSettings,
    timeout: Duration,
    output_bytes: Option<usize>,
) -> RunLimits {
    RunLimits {
        timeout,
        grace: Duration::from_millis(settings.grace_ms.min(GRACE_MS_MAX)),
        memory_bytes_max: output_bytes
            .unwrap_or(settings.output_bytes)
            .clamp(1, settings.output_bytes_max.max(1)),
        spool_bytes_max: settings.spool_bytes_max,
    }
}

/// Adds the call's variables to `base`, or refuses one that may not be set.
fn environment(
    given: BTreeMap<String, String>,
    mut base: BTreeMap<OsString, OsString>,
    settings: &ExecSettings,
) -> Result<BTreeMap<OsString, OsString>, ToolError> {
    for (name, value) in given {
        let path = if settings.env_path { PathVariable::Allowed } else { PathVariable::Refused };
        if let Some(reason) = variable_refusal(&name, &value, path) {
            let pointer = format!("/env/{}", name.replace('~', "~0").replace('/', "~1"));
            return Err(ToolError::invalid(pointer, format!("`{}` {reason}", name.escape_debug())));
        }
        base.insert(name.into(), value.into());
    }
    Ok(base)
}

/// Permission to set `PATH` for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathVariable {
    Allowed,
    Refused,
}

/// Returns the reason why the variable `name` may not be set to `value`, if there is one.
pub(crate) fn variable_refusal(name: &str, value: &str, path: PathVariable) -> Option<String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Some("is not a valid name of a variable".to_owned());
    }
    if value.contains('\0') {
        return Some("has a value that contains a NUL character".to_owned());
    }
    if let Some(reason) = refused_variable(name) {
        return Some(format!("may not be set: {reason}"));
    }
    (name == "PATH" && path == PathVariable::Refused)
        .then(|| "may not be set; name the program by its path instead".to_owned())
}
