//! Lists, prints and writes the schemas of envelopes and calls (`toolgate contract schemas`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::Value;
use toolgate_contract::Caller;
use toolgate_dialects::envelope::{canonical_tool_id, catalog_name};
use toolgate_host::{LazySchemaValidator, SchemaRegistry, SharedSchemaId, ToolSchemaDirection};
use toolgate_service::assembly::wiring::ServedWorkspace;

use super::check::read_json;
use crate::cli::{WorkspaceFolderArgs, complain, print};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate contract schemas                     list all schemas with their fingerprints
  toolgate contract schemas envelope            print envelope, request_envelope or tool_io
  toolgate contract schemas mcp.tool:files.read print a tool's input schema; --output for results
  toolgate contract schemas --write .           write all schemas as files, at RAGX's paths
  toolgate contract schemas --validate reply.json
                                                validate a file as an envelope

The exit code is 0 on success, 1 if the validated file is invalid, and 2 if a schema does not exist
or a file cannot be read.")]
pub(super) struct ContractSchemasArgs {
    /// Schema to print: envelope, request_envelope, tool_io, or the id of a tool
    name: Option<String>,
    /// Use the output schema of the tool
    #[arg(long, requires = "name")]
    output: bool,
    /// Write all schemas into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    write: Option<PathBuf>,
    /// Validate the JSON in this file against the schema, by default the schema of envelopes
    #[arg(long, value_name = "FILE", conflicts_with = "write")]
    validate: Option<PathBuf>,
    /// Workspace of the tools and schemas
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
    #[command(flatten)]
    folder: WorkspaceFolderArgs,
}

pub(super) fn run(args: &ContractSchemasArgs) -> anyhow::Result<ExitCode> {
    let loaded = args.folder.load(&args.root)?;
    let workspace = ServedWorkspace::open_for_inspection(&args.root, &loaded.config)?;
    let registry = &*workspace.host.schemas();
    if let Some(folder) = &args.write {
        write(folder, &workspace)?;
        return Ok(ExitCode::SUCCESS);
    }
    let side = if args.output { ToolSchemaDirection::Output } else { ToolSchemaDirection::Input };
    let named = args.name.as_deref();
    if let Some(file) = &args.validate {
        return validate(registry, named.unwrap_or("envelope"), side, file);
    }
    match named {
        Some(name) => {
            let all = find_schemas(registry, name, side)?;
            // A schema file of the user is separate from the tool's own schema.
            for checker in all {
                print(&format!("{}\n", serde_json::to_string_pretty(checker.schema())?))?;
            }
        }
        None => print(&schema_list(&workspace))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the schemas named `name`: a schema of envelopes or calls, or the input or output schemas
/// of the tool with the id `name`.
///
/// # Errors
/// No schema has this name, or the tool has no output schema.
fn find_schemas(
    registry: &SchemaRegistry,
    name: &str,
    side: ToolSchemaDirection,
) -> anyhow::Result<Vec<LazySchemaValidator>> {
    let shared = SharedSchemaId::ALL
        .into_iter()
        .find(|schema| schema.file_name().split('.').next() == Some(name));
    if let Some(schema) = shared {
        return Ok(vec![registry.shared(schema).clone()]);
    }
    if !name.starts_with("mcp.tool:") {
        bail!(
            "no schema is named `{name}`; the names are envelope, request_envelope, tool_io, and the \
             ids of tools, e.g. mcp.tool:files.read"
        );
    }
    let io = registry.load_tool_io(&format!("mcp.tool:{}", catalog_name(name)));
    let all = io?.checkers(side).to_vec();
    if all.is_empty() {
        bail!("`{name}` has no output schema");
    }
    Ok(all)
}

/// Validates the JSON in `file` against the schema `name` and prints each problem. Returns exit
/// code 1 if the JSON is invalid.
fn validate(
    registry: &SchemaRegistry,
    name: &str,
    side: ToolSchemaDirection,
    file: &Path,
) -> anyhow::Result<ExitCode> {
    let value: Value = read_json(file)?;
    let mut valid = true;
    for checker in find_schemas(registry, name, side)? {
        for problem in checker.problems(&value) {
            valid = false;
            print(&format!("{}: {}\n", problem.pointer, problem.message))?;
        }
    }
    if valid {
        complain(&format!("{} is valid as `{name}`", file.display()));
    }
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Lists all schemas, one per line, and the number of compiled validators.
fn schema_list(workspace: &ServedWorkspace) -> String {
    let registry = &*workspace.host.schemas();
    let line = |name: &str, checker: &LazySchemaValidator| {
        let fingerprint = checker.fingerprint().to_string();
        let from = checker.path().unwrap_or("built in");
        format!("{}  {name}  {from}\n", &fingerprint[..16])
    };
    let mut page = String::new();
    for which in SharedSchemaId::ALL {
        page += &line(which.file_name().trim_end_matches(".schema.json"), registry.shared(which));
    }
    for tool in workspace.host.tools(&Caller::local()).tools {
        let id = canonical_tool_id(&tool.spec().id);
        for side in [ToolSchemaDirection::Input, ToolSchemaDirection::Output] {
            let all = find_schemas(registry, &id, side).unwrap_or_default();
            page.extend(all.iter().map(|one| line(&format!("{id} {}", side.word()), one)));
        }
    }
    let counts = registry.counts();
    format!(
        "{page}schemas_loaded {}, validators_compiled {}\n",
        counts.schemas_loaded, counts.validators_compiled
    )
}

/// Writes all schemas into the subfolders of `folder` from which a server reads schemas by default.
#[allow(clippy::disallowed_methods, reason = "the user's own folder, named on the command line")]
fn write(folder: &Path, workspace: &ServedWorkspace) -> anyhow::Result<()> {
    let registry = &*workspace.host.schemas();
    let mut files = vec![
        (
            "apps/mcp_server/schemas/envelope.schema.json".to_owned(),
            SharedSchemaId::Envelope.builtin_text().to_owned(),
        ),
        (
            "codex/specs/schemas/envelope.schema.json".to_owned(),
            SharedSchemaId::RequestEnvelope.builtin_text().to_owned(),
        ),
        (
            "codex/specs/schemas/tool_io.schema.json".to_owned(),
            SharedSchemaId::ToolIo.builtin_text().to_owned(),
        ),
    ];
    for tool in workspace.host.tools(&Caller::local()).tools {
        let id = canonical_tool_id(&tool.spec().id);
        let name = id.trim_start_matches("mcp.tool:").to_owned();
        for side in [ToolSchemaDirection::Input, ToolSchemaDirection::Output] {
            let all = find_schemas(registry, &id, side).unwrap_or_default();
            // Only the tool's own schema is written, because schema files of the user exist
            // already.
            let Some(own) = all.into_iter().find(|one| one.path().is_none()) else { continue };
            let path = format!("apps/mcp_server/schemas/tools/{name}.{}.schema.json", side.word());
            files.push((path, serde_json::to_string_pretty(own.schema())? + "\n"));
        }
    }
    for (path, text) in &files {
        let file = folder.join(path);
        let failure = || format!("cannot write {}", file.display());
        if let Some(parent) = file.parent() {
            std::fs::create_dir_all(parent).with_context(failure)?;
        }
        std::fs::write(&file, text).with_context(failure)?;
    }
    complain(&format!("wrote {} schemas to {}", files.len(), folder.display()));
    Ok(())
}
