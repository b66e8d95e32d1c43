//! Page of the console that explains the policy decision about a call.

use std::sync::Arc;

use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;
use toolgate_contract::{Caller, CallerKind, ToolId, fold_name};
use toolgate_host::{ParsedAuditRecord, PolicyDecision};

use super::notice;
use crate::config::{Config, PolicyEffect, PolicyRule, SETTINGS_FILE_NAME};
use crate::console::WebConsole;
use crate::console::forms::FormFields;
use crate::console::layout::ConsolePage;

/// Maximum number of policy rules that the console page shows.
const RULES_MAX: usize = 200;

pub(super) fn page(console: &WebConsole, query: &FormFields) -> Option<ConsolePage<'static>> {
    let settings = (console.sources.settings)();
    let rules = &settings.policy.rules;
    let content = html! {
        (question_form(query))
        @if let Some(tool) = query.get("tool") { (explanation(console, &settings, query, tool)) }
        h2 { "Rules" }
        @if rules.is_empty() {
            p {
                "There are no rules. The default and these settings decide about calls: "
                code { "[tools]" }
            }
        } @else {
            p {
                "The first rule that matches a call decides. A change of the settings applies at once, "
                "unless the file needs your trust. Then run: " code { "toolgate trust" }
            }
            ol {
                @for rule in rules.iter().take(RULES_MAX) {
                    li { pre tabindex="0" { (as_toml(rule)) } }
                }
            }
            @if rules.len() > RULES_MAX { p { "And " (rules.len() - RULES_MAX) " other rules." } }
        }
        p .hint {
            "To allow a call, add a table " code { "[[policy.rules]]" }
            " to the settings file, before the rule that refused the call."
        }
    };
    Some(ConsolePage { title: "Policy".to_owned(), section: "/console/policy", live: "", content })
}

fn question_form(query: &FormFields) -> Markup {
    let value = |name| query.get(name).unwrap_or_default();
    html! {
        form method="get" action="/console/policy" {
            div .field { label for="caller" { "Caller" } input #caller name="caller" value=(value("caller")); }
            div .field {
                label for="roles" { "Roles, with spaces between" }
                input #roles name="roles" value=(value("roles"));
            }
            div .field { label for="tool" { "Tool" } input #tool name="tool" value=(value("tool")) required; }
            div .field {
                label for="input" { "Arguments as JSON" }
                textarea #input name="input" rows="3" placeholder="{\"path\": \"README.md\"}" {
                    (value("input"))
                }
            }
            button .primary { "Explain" }
        }
    }
}

fn explanation(console: &WebConsole, settings: &Config, query: &FormFields, tool: &str) -> Markup {
    let name = query.get("caller").unwrap_or("local");
    let by_name = Caller::from_name(name);
    // A token's caller is named by issuer and subject. Key names have no colon.
    let kind = if name.contains(':') { CallerKind::Token } else { by_name.kind };
    let given: Vec<Arc<str>> =
        query.get("roles").unwrap_or_default().split_whitespace().map(Arc::from).collect();
    let of_key = match (given.is_empty(), kind) {
        (true, CallerKind::Key) => key_roles(settings, name),
        _ => Vec::new(),
    };
    let roles = given.into_iter().chain(of_key.iter().map(|role| Arc::from(role.as_str())));
    let caller = Caller { roles: roles.collect(), kind, ..by_name };
    let written = query.get("input").map(str::trim).filter(|text| !text.is_empty());
    // Without arguments, it is of no use that some are missing.
    let has_input = written.is_some();
    let input: Value = match serde_json::from_str(written.unwrap_or("{}")) {
        Ok(input) => input,
        Err(why) => return notice(&format!("The arguments are not JSON: {why}")),
    };
    match console.sources.host.explain(&caller, tool, input) {
        Ok(explained) => html! {
            h2 { "Decision" }
            pre tabindex="0" { (explained) }
            @if !of_key.is_empty() {
                p .hint { (format!("The key of {name} has the roles {}.", of_key.join(", "))) }
            }
            @if let Some(problem) = explained.input_problem.as_ref().filter(|_| has_input) {
                p {
                    "With these arguments, the call would be refused: " (problem)
                    ". Complete the arguments here. To record all arguments of later calls, set "
                    code { "audit.arguments = \"redacted\"" } "."
                }
            }
            @if explained.decision != PolicyDecision::Allowed {
                (advice(console, settings, name, tool, &explained.rule))
            }
        },
        Err(why) => notice(&why.to_string()),
    }
}

/// Returns the roles of the valid API key with the caller name `name`. Empty if there is no such
/// key.
fn key_roles(settings: &Config, name: &str) -> Vec<String> {
    let keys = settings.valid_keys(Timestamp::now()).unwrap_or_default();
    let key = keys.into_iter().rfind(|key| key.name == name);
    key.map(|key| key.roles).unwrap_or_default()
}

/// Returns the reason in HTML why the policy refused the call of `record`, with the lines of
/// settings that would allow the call.
pub(super) fn refusal(console: &WebConsole, record: &ParsedAuditRecord) -> Markup {
    let settings = (console.sources.settings)();
    let rule = record.rule.as_deref().unwrap_or_default();
    let written = settings.policy.rules.iter().find(|one| one.name == plain_name(rule));
    html! {
        h2 { "Why the call was refused" }
        div .notice {
            p { strong { "Refused by this policy rule or setting: " } code { (rule) } }
            @if let Some(error) = &record.error { p { "Message to the caller: " (error) } }
        }
        @if let Some(written) = written {
            pre tabindex="0" { "[[policy.rules]]\n" (as_toml(written)) }
        }
        (advice(console, &settings, &record.caller, &record.tool, rule))
    }
}

/// Returns advice in HTML on how to allow the calls of `tool` by `caller` that the policy rule
/// `rule` refuses.
fn advice(console: &WebConsole, settings: &Config, caller: &str, tool: &str, rule: &str) -> Markup {
    let rule = plain_name(rule);
    let is_rule = settings.policy.rules.iter().any(|one| one.name == rule);
    let id = console.sources.host.tool_id(tool);
    let tool = id.as_ref().map_or(tool, ToolId::as_str);
    let file = settings_file(console, settings);
    html! {
        h2 { "To allow the call" }
        @if is_rule || rule == "default" {
            p {
                @if is_rule {
                    "Change the rule that refused the call, or put the following rule before that rule. "
                } @else {
                    "No rule allows the call, and the default denies the call. Add the following rule. "
                }
                "The settings file is: " code { (file) }
            }
            p { "This rule allows every call of the tool " code { (tool) } (format!(" by {caller}:")) }
            pre tabindex="0" { (allowing_rule(caller, tool)) }
            p { (trust_advice(console, settings)) }
        } @else if let Some(lines) = setting_lines(settings, tool, rule) {
            p {
                "This setting refuses the call: " code { (rule) }
                ". With the following lines in the settings file, the setting refuses the call of no "
                "caller. The settings file is: " code { (file) }
            }
            pre tabindex="0" { (lines) }
        } @else if rule == "scopes" {
            p {
                "The caller's token lacks a scope that covers the tool. Request a token with such a scope, "
                "or add the tool to a scope that the token has, in this table: "
                code { "[[scopes]]" }
            }
        } @else {
            p {
                "This setting decides about the call: " code { (rule) }
                ". Change the setting in the settings file: " code { (file) }
            }
        }
    }
}

/// Returns the path of the settings file. If the server has no settings file, returns the default
/// path in the workspace.
fn settings_file(console: &WebConsole, settings: &Config) -> String {
    let file = settings.source.as_ref().map(|source| source.file.clone());
    let file = file.unwrap_or_else(|| console.sources.root.join(SETTINGS_FILE_NAME));
    file.display().to_string()
}

/// Returns advice in HTML on the steps after a change of the policy rules in the settings file,
/// such as `toolgate trust`.
fn trust_advice(console: &WebConsole, settings: &Config) -> Markup {
    let folder = console.sources.root.display();
    html! {
        @if settings.is_file_named {
            "The server applies a change of the settings file at once. The settings file needs no trust, "
            "because the server was started with the name of this file."
        } @else {
            @if settings.source.is_none() { "The settings file does not exist yet. " }
            "After you change the settings file, trust it with this command: "
            code { (format!("toolgate trust {folder}")) }
        }
    }
}

/// Returns the name of a policy rule without the suffix that marks a rule whose expression could
/// not be evaluated.
fn plain_name(rule: &str) -> &str {
    rule.strip_suffix(" (failed)").unwrap_or(rule)
}

/// Returns the settings lines of a policy rule that allows all calls of `tool` by `caller`.
fn allowing_rule(caller: &str, tool: &str) -> String {
    let rule = PolicyRule {
        name: format!("allow-{}", fold_name(tool)),
        effect: PolicyEffect::Allow,
        callers: vec![caller.to_owned()],
        roles: Vec::new(),
        tools: vec![tool.to_owned()],
        effects: Vec::new(),
        when: None,
        message: None,
    };
    format!("[[policy.rules]]\n{}", as_toml(&rule))
}

/// Returns the lines of the `[tools]` settings that would allow calls of `tool`, if `rule` stands
/// for one of these settings, such as `tools.deny`. Returns `None` for any other rule.
fn setting_lines(settings: &Config, tool: &str, rule: &str) -> Option<String> {
    let tools = &settings.tools;
    // TOML writes such lists of strings like JSON.
    let list = |entries: &[&str]| serde_json::to_string(entries).unwrap_or_default();
    let (setting, pattern) = rule.split_once(": ").unwrap_or((rule, ""));
    let line = match setting {
        "tools.effects" => {
            "effects = \"runs\"  # or \"adds\" or \"changes\"; not with --read-only".to_owned()
        }
        "tools.deny" => {
            let rest = tools.deny.iter().map(String::as_str).filter(|one| *one != pattern);
            format!("deny = {}", list(&rest.collect::<Vec<_>>()))
        }
        "tools.allow" => {
            let all = tools.allow.iter().map(String::as_str).chain([tool]);
            format!("allow = {}", list(&all.collect::<Vec<_>>()))
        }
        _ => return None,
    };
    Some(format!("[tools]\n{line}\n"))
}

fn as_toml(rule: &PolicyRule) -> String {
    toml::to_string(rule).unwrap_or_default()
}
