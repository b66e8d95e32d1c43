//! Replaces built-in tools by declared commands with the same names, and checks the hosts of
//! declared commands.

use std::sync::Arc;

use anyhow::{anyhow, bail};
use toolgate_contract::{AnyTool, ToolId, fold_name};
use toolgate_toolsets::commands;
use toolgate_world::sandbox::SandboxSettings;

/// Removes each built-in tool from `tools` that a command in `declared` replaces. Returns the ids
/// of the removed tools.
///
/// # Errors
/// A command has the name of a built-in tool, but its declaration does not say that it replaces
/// this tool.
pub(crate) fn remove_replaced(
    tools: &mut Vec<Arc<dyn AnyTool>>,
    declared: &[commands::DeclaredCommand],
) -> anyhow::Result<Vec<ToolId>> {
    let mut replaced = Vec::new();
    for command in declared {
        let has_name =
            |tool: &Arc<dyn AnyTool>| fold_name(tool.spec().id.as_str()) == fold_name(command.id());
        let Some(at) = tools.iter().position(has_name) else { continue };
        let tool = tools.remove(at).spec().id.clone();
        if !command.replaces() {
            bail!(
                "{}: `{tool}` is the name of a built-in tool; rename the command, or replace the \
                 tool with `replaces = true`",
                command.location()
            );
        }
        replaced.push(tool);
    }
    Ok(replaced)
}

/// Checks that no declared command restricts the paths on a host that programs reach over SSH (the
/// setting `sandbox.ssh`).
///
/// # Errors
/// A command restricts the paths on such a host. The error names the host and the command.
pub(crate) fn check_command_hosts(
    sandbox: &SandboxSettings,
    declared: &[commands::DeclaredCommand],
) -> anyhow::Result<()> {
    let mut accesses = declared.iter().filter_map(commands::DeclaredCommand::hosts);
    accesses.try_for_each(|access| sandbox.check_ssh(access)).map_err(|why| anyhow!(why))
}
