//! Skills of other servers, beside our own and instead of none of them.

use serde_json::{Value, json};

use super::real::{node, tool};
use super::{checkout, stdio};
use crate::support::{Client, Workspace};

/// A workspace with a skill `tea` of its own, before a server with the skills `pdf` and `tea`.
fn with_skills(live: bool, more: &str) -> Workspace {
    let skill = |name: &str, about: &str| {
        format!(
            "---\nname: {name}\ndescription: {about}\nmetadata:\n  version: \"1.0\"\n---\n\n# {about}\n"
        )
    };
    let workspace = Workspace::new()
        .file("skills/tea/SKILL.md", skill("tea", "Ours"))
        .file("theirs/tea/SKILL.md", skill("tea", "Theirs"))
        .file("theirs/pdf/SKILL.md", skill("pdf", "Reads forms"))
        .file("theirs/pdf/forms.md", "# Forms\n");
    let script = checkout().join("tests/upstreams/skills.mjs").display().to_string();
    let folder = workspace.path("theirs").display().to_string();
    let mut command = vec![node(), script, tool("servers"), folder];
    command.extend(live.then(|| "--live".to_owned()));
    workspace.file("toolgate.toml", format!("[upstream.up]\ncommand = {command:?}\n{more}\n"))
}

fn read(client: &mut Client, uri: &str) -> Value {
    client.ask("resources/read", json!({ "uri": uri }))
}

/// What a file that was read says.
#[track_caller]
fn said(answer: &Value) -> &str {
    answer["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn listed(client: &mut Client) -> Vec<String> {
    let answer = client.ask("skills/list", json!({}));
    let all = answer["result"]["skills"].as_array().unwrap_or_else(|| panic!("{answer}"));
    all.iter().map(|skill| skill["uri"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn skills_of_another_server_are_listed_got_read_and_looked_into_beside_our_own() {
    let workspace = with_skills(false, "");
    let mut client = stdio(&workspace);
    let all = ["skill://pdf/SKILL.md", "skill://tea/SKILL.md", "skill://toolgate/SKILL.md"];
    assert_eq!(listed(&mut client), all);
    let got = client.ask("skills/get", json!({ "uri": all[0] }));
    let skill = &got["result"]["skill"];
    assert_eq!(skill["frontmatter"]["description"], "Reads forms", "{got}");
    assert_eq!(skill["resources"].as_array().map(Vec::len), Some(2), "{got}");
    assert_eq!(said(&read(&mut client, "skill://pdf/forms.md")), "# Forms\n");
    assert!(said(&read(&mut client, all[0])).ends_with("# Reads forms\n"));
    let inside = client.ask("resources/directory/read", json!({ "uri": "skill://pdf" }));
    let inside = inside["result"]["resources"].as_array().unwrap_or_else(|| panic!("{inside}"));
    let uris: Vec<_> = inside.iter().map(|one| one["uri"].as_str().unwrap()).collect();
    assert_eq!(uris, ["skill://pdf/SKILL.md", "skill://pdf/forms.md"]);
    for uri in ["skill://nobody/SKILL.md", "other://pdf/SKILL.md"] {
        let none = client.ask("skills/get", json!({ "uri": uri }));
        assert_eq!(none["error"]["code"], -32602, "{none}");
        assert!(none["error"]["message"].as_str().unwrap().contains("no skill is at"), "{none}");
    }
    assert_eq!(read(&mut client, "skill://nobody/SKILL.md")["error"]["code"], -32602);
}

#[test]
fn a_skill_of_ours_is_read_of_us_though_an_upstream_has_one_of_its_name() {
    let workspace = with_skills(false, "");
    // What the upstream has is known before it is looked at what we have.
    stdio(&workspace).tools();
    for uri in ["skill://tea/SKILL.md", "skill://toolgate/SKILL.md"] {
        let mut client = stdio(&workspace);
        let answer = read(&mut client, uri);
        assert!(!said(&answer).contains("Theirs"), "{answer}");
        let got = client.ask("skills/get", json!({ "uri": uri }));
        assert!(!got.to_string().contains("Theirs") && got.get("result").is_some(), "{got}");
    }
    // Once we have none of the name, it is theirs.
    let mut client = stdio(&workspace);
    std::fs::remove_dir_all(workspace.path("skills")).unwrap();
    let answer = read(&mut client, "skill://tea/SKILL.md");
    assert!(said(&answer).contains("Theirs"), "{answer}");
}

#[test]
fn a_file_that_is_not_what_its_skill_says_is_refused_and_one_that_is_another_by_now_is_not() {
    let workspace = with_skills(true, "");
    let mut client = stdio(&workspace);
    listed(&mut client);
    let was = workspace.read("theirs/pdf/SKILL.md");
    for (lie, why) in [
        (was.replace("# Reads", "# Leaks"), "its digest is"),
        (format!("{was}\nand more"), "bytes, not"),
    ] {
        std::fs::write(workspace.path("theirs/pdf/lie"), lie).unwrap();
        let refused = read(&mut client, "skill://pdf/SKILL.md").to_string();
        assert!(refused.contains(why) && refused.contains("is not to be used"), "{refused}");
        assert!(!refused.contains("Leaks"), "{refused}");
    }
    std::fs::remove_file(workspace.path("theirs/pdf/lie")).unwrap();
    assert_eq!(said(&read(&mut client, "skill://pdf/SKILL.md")), was);
    // The server lists it as it was, and gives it as it is.
    std::fs::write(workspace.path("theirs/pdf/forms.md"), "# More forms\n").unwrap();
    assert_eq!(said(&read(&mut client, "skill://pdf/forms.md")), "# More forms\n");
}

#[test]
fn skills_of_an_upstream_whose_resources_are_not_for_the_caller_are_not_told() {
    for more in ["resources = false", "[tools]\ndeny = [\"up.resources\"]"] {
        let workspace = with_skills(false, more);
        let mut client = stdio(&workspace);
        client.tools();
        let all = ["skill://tea/SKILL.md", "skill://toolgate/SKILL.md"];
        assert_eq!(listed(&mut client), all, "{more}");
        let none = client.ask("skills/get", json!({ "uri": "skill://pdf/SKILL.md" }));
        assert_eq!(none["error"]["code"], -32602, "{none}");
        assert!(read(&mut client, "skill://pdf/SKILL.md").get("error").is_some());
    }
}
