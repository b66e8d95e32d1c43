//! Validates an asset file against its schema (`toolgate contract validate`).
#![allow(clippy::disallowed_methods, reason = "the user's own file, named on the command line")]

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Value, json};
use toolgate_contract::{exact_json, strip_byte_order_mark};
use toolgate_toolsets::assets::{AssetSnapshot, schema_of_example};
use toolgate_world::Root;

use crate::cli::{WorkspaceFolderArgs, print};

/// Largest asset file that is validated, in bytes.
const BYTES_MAX: u64 = 64 << 20;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate contract validate examples/Tone_Example.json
  toolgate contract validate asset.json --schema nested-synesthetic-asset
  SYN_SCHEMAS_DIR=~/schemas toolgate contract validate asset.json

The report goes to standard output, as one JSON object. Without --schema, the schema is the one that
the asset names, or the one that fits its file name. The exit code is 0 if the asset is valid, 1 if it
is invalid, and 2 if the file is missing or not JSON.")]
pub(super) struct ContractValidateArgs {
    /// Asset file
    path: PathBuf,
    /// Schema name, instead of the name in the asset or in its file name
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,
    /// Workspace whose settings and schemas apply
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    /// Configuration file, instead of toolgate.toml in the folder
    #[arg(long, value_name = "FILE", env = "TOOLGATE_CONFIG")]
    config: Option<PathBuf>,
}

/// JSON report of `contract validate`, and the exit code of the command.
type ValidationReport = (Value, u8);

pub(super) fn run(args: &ContractValidateArgs) -> anyhow::Result<ExitCode> {
    let (report, code) = validate_asset(args).unwrap_or_else(|report| report);
    print(&format!("{report}\n"))?;
    Ok(ExitCode::from(code))
}

/// Validates the asset file. Returns the report as an error if the file could not be validated at
/// all.
fn validate_asset(args: &ContractValidateArgs) -> Result<ValidationReport, ValidationReport> {
    let asset = read_asset(&args.path)?;
    let assets =
        open_assets(args).map_err(|err| nothing_to_validate("io_error", &format!("{err:#}")))?;
    let file = args.path.file_name().unwrap_or_default().to_string_lossy();
    let schema = args.schema.clone().unwrap_or_else(|| schema_of_example(&asset, &file));
    let errors = assets.validate(&asset, &schema);
    Ok(if errors.is_empty() {
        (json!({ "ok": true, "errors": [], "schema": schema }), 0)
    } else {
        let reason = "validation_failed";
        (json!({ "ok": false, "reason": reason, "errors": errors, "schema": schema }), 1)
    })
}

fn open_assets(args: &ContractValidateArgs) -> anyhow::Result<std::sync::Arc<AssetSnapshot>> {
    let folder =
        WorkspaceFolderArgs { config: args.config.clone(), read_only: false, tools: Vec::new() };
    let mut settings = folder.load(&args.root)?.config.assets;
    settings.owner.always_offered = true;
    let assets = AssetSnapshot::open(&Root::open(&args.root)?, &settings)?;
    assets.context("there are no assets")
}

fn read_asset(path: &Path) -> Result<Value, ValidationReport> {
    let failure = |err: io::Error| match err.kind() {
        io::ErrorKind::NotFound => {
            nothing_to_validate("io_error", &format!("file_not_found: {}", path.display()))
        }
        _ => nothing_to_validate("io_error", &format!("read_failed: {}: {err}", path.display())),
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failure)?;
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failure)?;
    if bytes.len() as u64 > BYTES_MAX {
        let message = format!("read_failed: {} is larger than 64 MiB", path.display());
        return Err(nothing_to_validate("io_error", &message));
    }
    let text = String::from_utf8(bytes).map_err(|err| failure(io::Error::other(err)))?;
    exact_json::parse(strip_byte_order_mark(&text)).map_err(|err| {
        // A missing end is reported after the last character.
        let column = err.column() + usize::from(err.is_eof());
        let line = err.line();
        nothing_to_validate(
            "parse_error",
            &format!("json_decode_error: line {line} column {column}"),
        )
    })
}

/// Creates the report that an asset could not be validated: a short `reason`, and a `message` for
/// people.
fn nothing_to_validate(reason: &str, message: &str) -> ValidationReport {
    (json!({ "ok": false, "reason": reason, "errors": [{ "path": "", "msg": message }] }), 2)
}
