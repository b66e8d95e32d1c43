//! Checks the program, directory and environment that a call requests, before the program starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use toolgate_contract::{ToolError, TraceContext};

use super::ExecSettings;
use super::offline_variables::offline_variables;
use super::program::{ProgramInputFieldNames, ProgramLookupRules, ShellScriptPermission};
use super::programs::WorkspaceProgramRunner;
use super::run::{RunProgramInput, TIMEOUT_MS, TIMEOUT_MS_MAX};
use super::trace_variables::set_trace_variables;
use toolgate_world::processes::{ProgramRunLimits, ProgramStartRequest, refused_variable};

/// The time between asking a program to stop and killing it. Most programs stop faster. The time is
/// short because a caller who cancels a call waits for its end.
const GRACE: Duration = Duration::from_millis(500);

/// The default number of bytes of each output stream that a result shows. An agent can read this
/// much at once, and gets the rest with `exec_output`.
const OUTPUT_BYTES: usize = 32 << 10;

/// The highest number of bytes of each output stream that a call can ask a result to show. A result
/// is held in memory.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Creates the request to start the program that `input` names. The program continues the trace
/// `trace`. Errors refer to the input fields in `fields`.
pub(super) fn prepare_start(
    input: RunProgramInput,
    fields: ProgramInputFieldNames,
    trace: Option<&TraceContext>,
    programs: &WorkspaceProgramRunner,
) -> Result<ProgramStartRequest, ToolError> {
    let WorkspaceProgramRunner { root, processes, settings, .. } = programs;
    let RunProgramInput { command, args, shell, cwd, env, stdin, timeout_ms, max_output_bytes } =
        input;
    let path = processes.search_path();
    let cwd =
        root.open_dir(cwd.as_deref().unwrap_or(".")).map_err(|err| err.with_pointer("/cwd"))?;
    if let Some(at) = args.iter().position(|arg| arg.contains('\0')) {
        return Err(ToolError::invalid(
            format!("/args/{at}"),
            "the argument contains a NUL character",
        ));
    }
    let scripts = ShellScriptPermission::from_settings(settings);
    // Skip folders in `PATH` that programs can write to. Otherwise a program could plant a file
    // under an allowed name.
    let search_path = match settings.allow[..] {
        [] => path.clone(),
        [..] => processes.unwritable_path(&path, root),
    };
    let confinement = programs.confinement();
    // Other tools set the variables of their programs themselves.
    let offline: &[(&str, &str)] = match fields {
        ProgramInputFieldNames::Program => {
            let words = [command.as_str()].into_iter().chain(args.iter().map(String::as_str));
            offline_variables(confinement.as_ref(), words)
        }
        ProgramInputFieldNames::CommandLine | ProgramInputFieldNames::Project => &[],
    };
    let is_visible = |program: &Path| match &confinement {
        None => true,
        // If no sandbox is available, the start itself fails and reports that.
        Some(confinement) => processes.shows_file(confinement, program).unwrap_or(true),
    };
    let chooser = ProgramLookupRules {
        cwd: cwd.as_fd(),
        path: &search_path,
        scripts,
        fields,
        is_visible: &is_visible,
    };
    let (mut program, args) = match shell {
        false => (chooser.find_allowed(&command, &settings.allow)?, args),
        true if scripts == ShellScriptPermission::Refused => {
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
    let offline = offline.iter();
    base.extend(offline.map(|&(name, value)| (OsString::from(name), OsString::from(value))));
    let env = environment(env, base)?;
    let timeout_ms = timeout_ms.unwrap_or(TIMEOUT_MS).clamp(1, TIMEOUT_MS_MAX);
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
    Ok(ProgramStartRequest {
        program,
        args: args.into_iter().map(OsString::from).collect(),
        cwd,
        env,
        stdin: stdin.map(String::into_bytes),
        bounds,
        confinement,
    })
}

/// Returns the limits of a program run with the timeout `timeout`. Results show at most
/// `output_bytes` bytes of each output stream.
pub(crate) fn bounds(
    settings: &ExecSettings,
    timeout: Duration,
    output_bytes: Option<usize>,
) -> ProgramRunLimits {
    ProgramRunLimits {
        timeout,
        grace: GRACE,
        memory_bytes_max: output_bytes.unwrap_or(OUTPUT_BYTES).clamp(1, OUTPUT_BYTES_MAX),
        spool_bytes_max: settings.stored_output.stream_bytes_max,
    }
}

/// Returns `base` with the call's environment variables `given` added. Fails if the call may not
/// set one of these variables.
fn environment(
    given: BTreeMap<String, String>,
    mut base: BTreeMap<OsString, OsString>,
) -> Result<BTreeMap<OsString, OsString>, ToolError> {
    for (name, value) in given {
        if let Some(reason) = variable_refusal(&name, &value) {
            let pointer = format!("/env/{}", name.replace('~', "~0").replace('/', "~1"));
            return Err(ToolError::invalid(pointer, format!("`{}` {reason}", name.escape_debug())));
        }
        base.insert(name.into(), value.into());
    }
    Ok(base)
}

/// Returns the reason why a call may not set the environment variable `name` to `value`. Returns
/// `None` if the variable is allowed.
pub(crate) fn variable_refusal(name: &str, value: &str) -> Option<String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Some("is not a valid name of a variable".to_owned());
    }
    if value.contains('\0') {
        return Some("has a value that contains a NUL character".to_owned());
    }
    if let Some(reason) = refused_variable(name) {
        return Some(format!("may not be set: {reason}"));
    }
    // Otherwise a call could choose which file runs under the name of an allowed program.
    (name == "PATH").then(|| "may not be set; name the program by its path instead".to_owned())
}
