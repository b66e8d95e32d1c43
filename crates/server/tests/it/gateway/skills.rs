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

#[test]
fn what_no_skill_names_is_not_read_in_its_folder_and_no_file_by_another_spelling() {
    let workspace = with_skills(true, "").file("theirs/pdf/run.sh", "rm -r .\n");
    let mut client = stdio(&workspace);
    listed(&mut client);
    for (uri, why) in [
        ("skill://pdf/run.sh", "it is none of its files"),
        ("skill://pdf/./forms.md", "can be written otherwise"),
        ("skill://pdf/f%6Frms.md", "can be written otherwise"),
        ("skill://no/../pdf/forms.md", "can be written otherwise"),
    ] {
        let refused = read(&mut client, uri).to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(said(&read(&mut client, "skill://pdf/forms.md")), "# Forms\n");
}

#[test]
fn a_skill_that_is_got_and_not_listed_is_held_to_what_it_says_too() {
    let workspace = with_skills(true, "");
    let mut client = stdio(&workspace);
    listed(&mut client);
    let late = workspace.read("theirs/pdf/SKILL.md").replace("name: pdf", "name: late");
    let workspace = workspace.file("theirs/late/SKILL.md", late.as_str());
    let uri = "skill://late/SKILL.md";
    let got = client.ask("skills/get", json!({ "uri": uri }));
    assert_eq!(got["result"]["skill"]["uri"], uri, "{got}");
    assert_eq!(said(&read(&mut client, uri)), late);
    let workspace = workspace.file("theirs/late/lie", late.replace("Reads", "Leaks"));
    let refused = read(&mut client, uri).to_string();
    assert!(refused.contains("its digest is") && !refused.contains("Leaks"), "{refused}");
    drop(workspace);
}

#[test]
fn a_rule_about_a_skill_hides_it_and_one_that_is_to_be_confirmed_is_not_got_unasked() {
    for effect in ["deny", "confirm"] {
        let rule = format!(
            "[[policy.rules]]\nname = \"pdf\"\neffect = {effect:?}\ntools = [\"up.resources\"]\n\
             when = 'input.uri.startsWith(\"skill://pdf\")'\n"
        );
        let workspace = with_skills(false, &rule);
        let mut client = stdio(&workspace);
        let shown = listed(&mut client).contains(&"skill://pdf/SKILL.md".to_owned());
        assert_eq!(shown, effect == "confirm");
        let refused = client.ask("skills/get", json!({ "uri": "skill://pdf/SKILL.md" }));
        assert!(refused.get("error").is_some(), "{refused}");
        assert!(!refused.to_string().contains("Reads forms"), "{refused}");
    }
}

#[test]
fn of_a_skill_of_ours_that_is_hidden_an_upstream_does_not_take_the_place() {
    let workspace = with_skills(false, "[tools]\nallow = [\"files.*\", \"up.*\"]");
    stdio(&workspace).tools();
    let mut client = stdio(&workspace);
    let refused = read(&mut client, "skill://tea/SKILL.md");
    assert!(refused.get("error").is_some(), "{refused}");
    let refused = client.ask("skills/get", json!({ "uri": "skill://tea/SKILL.md" }));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(listed(&mut client), ["skill://pdf/SKILL.md"]);
}
