//! Policy: explains the decision about a call.

use std::sync::Arc;

use maud::{Markup, html};
use serde_json::Value;
use toolgate_contract::{Caller, CallerKind};

use super::notice;
use crate::console::Console;
use crate::console::forms::FormFields;
use crate::console::layout::ConsolePage;

/// Largest number of rules on the page.
const RULES_MAX: usize = 200;

pub(super) fn page(console: &Console, query: &FormFields) -> Option<ConsolePage<'static>> {
    let settings = (console.sources.settings)();
    let rules = &settings.policy.rules;
    let content = html! {
        (question_form(query))
        @if let Some(tool) = query.get("tool") { (explanation(console, query, tool)) }
        h2 { "Rules" }
        @if rules.is_empty() {
            p { "There are no rules. Calls are decided by " code { "[tools]" } " and the default." }
        } @else {
            p { "The first rule that matches a call decides. A change of the settings applies at once." }
            ol {
                @for rule in rules.iter().take(RULES_MAX) {
                    li { code { (rule.name) } ": " (format!("{:?}", rule.effect).to_lowercase()) }
                }
            }
            @if rules.len() > RULES_MAX { p { "And " (rules.len() - RULES_MAX) " other rules." } }
        }
        p .hint {
            "To allow a call, add a rule to " code { "[[policy.rules]]" } " in the settings file."
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

fn explanation(console: &Console, query: &FormFields, tool: &str) -> Markup {
    let name = query.get("caller").unwrap_or("local");
    let roles = query.get("roles").unwrap_or_default().split_whitespace().map(Arc::from).collect();
    let by_name = Caller::from_name(name);
    // A token's caller is named by issuer and subject. Key names have no colon.
    let kind = if name.contains(':') { CallerKind::Token } else { by_name.kind };
    let caller = Caller { roles, kind, ..by_name };
    let input: Value = match serde_json::from_str(query.get("input").unwrap_or("{}")) {
        Ok(input) => input,
        Err(why) => return notice(&format!("The arguments are not JSON: {why}")),
    };
    match console.sources.host.explain(&caller, tool, input) {
        Ok(explained) => html! {
            h2 { "Decision" }
            pre tabindex="0" { (explained) }
            @if let Some(problem) = &explained.input_problem {
                p { "With these arguments, the call would be refused: " (problem) }
            }
        },
        Err(why) => notice(&why.to_string()),
    }
}
