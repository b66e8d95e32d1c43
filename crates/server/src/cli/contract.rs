//! Checks the older contracts: envelopes, their logs and schemas, and asset files
//! (`toolgate contract`).

mod check;
mod diff_logs;
mod schemas;
mod validate;

use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct ContractArgs {
    #[command(subcommand)]
    command: ContractCommand,
}

#[derive(clap::Subcommand)]
enum ContractCommand {
    /// Run the envelope contract once and check the results
    Check(check::ContractCheckArgs),
    /// Compare two logs of envelopes
    DiffLogs(diff_logs::DiffLogsArgs),
    /// List, print or write the schemas of envelopes and calls
    Schemas(schemas::ContractSchemasArgs),
    /// Validate an asset file against its schema
    Validate(validate::ContractValidateArgs),
}

pub(super) fn run(args: &ContractArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ContractCommand::Check(args) => check::run(args),
        ContractCommand::DiffLogs(args) => diff_logs::run(args),
        ContractCommand::Schemas(args) => schemas::run(args),
        ContractCommand::Validate(args) => validate::run(args),
    }
}
