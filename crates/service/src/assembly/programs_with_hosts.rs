//! Lists the programs whose own settings restrict their `hosts`, so that `toolgate doctor` also
//! tests the network of their sandboxes.

use toolgate_toolsets::commands;
use toolgate_world::sandbox::{ProgramConfinement, SandboxProfile};
use toolgate_world::{Root, Sandbox};

use crate::config::Config;
use crate::upstreams::sandbox_profile;

/// Returns the confinement of each program in `root` whose own settings have `hosts`: programs of
/// enabled upstreams and of declared commands. Omits programs without a sandbox.
///
/// # Errors
/// A sandbox profile or the declaration of a command is invalid.
pub fn confined_programs_with_hosts(
    config: &Config,
    sandbox: &Sandbox,
    root: &Root,
) -> anyhow::Result<Vec<ProgramConfinement>> {
    let mut all = Vec::new();
    for settings in config.upstream.values().filter(|it| it.enabled && !it.hosts.is_empty()) {
        let profile = sandbox_profile(&settings.sandbox).map_err(anyhow::Error::msg)?;
        if profile < SandboxProfile::Network {
            all.extend(sandbox.confinement_with(profile, root));
        }
    }
    for command in commands::load_commands(&config.commands, config.source.as_ref())? {
        let Some(access) = command.hosts() else { continue };
        let confinement = sandbox.confinement_for(command.id(), command.only_reads(), root);
        all.extend(confinement.map(|mut confinement| {
            confinement.limit_to_hosts(access);
            confinement
        }));
    }
    Ok(all)
}
