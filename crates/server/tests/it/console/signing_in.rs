//! Tests of signing in to the web console, and of requests that it refuses.

use crate::console::{ConsoleClient, form, one_time_token, sign_in};
use crate::support::{ServerLaunchOptions, TempWorkspace, TestHttpRequest, keys_of};

/// Pages and files of the console that are shown only to people who signed in.
const PAGES: [&str; 12] = [
    "/",
    "/console/calls",
    "/console/calls/1",
    "/console/jobs",
    "/console/tools",
    "/console/tools/files.read",
    "/console/upstreams",
    "/console/policy",
    "/console/callers",
    "/console/search",
    "/console/settings",
    "/console/events",
];

/// Returns a workspace with settings in which each role has an API key.
fn keyed_workspace() -> TempWorkspace {
    let keys = keys_of(&["ada", "viewer", "agent"]);
    let keys = keys.replace("name = \"ada\"", "roles = [\"admin\"]\nname = \"ada\"");
    let keys = keys.replace("name = \"viewer\"", "roles = [\"console\"]\nname = \"viewer\"");
    TempWorkspace::new().file("toolgate.toml", keys)
}

#[test]
fn without_a_session_every_page_leads_to_the_page_that_signs_in() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    for page in PAGES {
        for cookie in ["", "toolgate_console=", "toolgate_console=0000"] {
            let answer = served.send(&TestHttpRequest::bare("GET", page).with("cookie", cookie));
            assert_eq!(answer.status, 303, "{page}");
            assert_eq!(answer.header("location"), Some("/console/sign-in"));
            assert_eq!(answer.text(), "");
        }
    }
    let act = served.send(&form("/console/tools/files.read/call", &[("arg.path", "README.md")]));
    assert_eq!(act.status, 401, "{act:?}");
    served.ask(&crate::support::call(1, "files_exists", serde_json::json!({ "path": "x" })));
    assert_eq!(served.outcomes(1), ["ok"], "the refused call left no record");
}

#[test]
fn a_link_works_once_and_only_where_no_key_is_needed() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let token = one_time_token(&served);
    let page =
        served.send(&TestHttpRequest::bare("GET", &format!("/console/sign-in?token={token}")));
    assert_eq!(page.status, 200);
    assert!(page.text().contains(&token), "a look does not use the link up");
    assert_eq!(sign_in(&served, &[("token", &token)]).status, 303);
    assert_eq!(sign_in(&served, &[("token", &token)]).status, 403);
    assert_eq!(sign_in(&served, &[("token", &"0".repeat(112))]).status, 403);
    assert_eq!(sign_in(&served, &[("key", "anything")]).status, 400);
    ConsoleClient::with_link(&served).page("/");

    let keyed = ServerLaunchOptions::over(&keyed_workspace()).served();
    assert_eq!(sign_in(&keyed, &[("token", &one_time_token(&served))]).status, 400);
}

#[test]
fn a_key_signs_in_with_its_role() {
    let served = ServerLaunchOptions::over(&keyed_workspace()).served();
    let wrong = sign_in(&served, &[("key", "wrong-key")]);
    assert_eq!(wrong.status, 401, "{wrong:?}");
    assert!(!wrong.text().contains("wrong-key"));
    assert_eq!(sign_in(&served, &[("key", "agent-key")]).status, 403);
    let ada = ConsoleClient::with_key(&served, "ada-key");
    assert!(ada.page("/console/tools/files.read").contains("Call the tool as ada"));
    let viewer = ConsoleClient::with_key(&served, "viewer-key");
    assert!(!viewer.page("/console/tools/files.read").contains("Call the tool as"));
    let refused = viewer.post("/console/tools/files.read/call", &[("arg.path", "README.md")]);
    assert_eq!(refused.status, 403, "{refused:?}");
    let status = (0..12).map(|_| sign_in(&served, &[("key", "another-wrong")]).status).last();
    assert_eq!(status, Some(429), "guesses are throttled");
}

#[test]
fn a_session_ends_when_the_person_signs_out() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let person = ConsoleClient::with_link(&served);
    let other_tab = ConsoleClient { served: &served, cookie: person.cookie.clone() };
    assert_eq!(other_tab.get("/").status, 200);
    let out = person.post("/console/sign-out", &[]);
    assert_eq!(out.status, 303);
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(other_tab.get("/").status, 303);
}

#[test]
fn a_form_without_the_token_of_the_session_is_refused() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let person = ConsoleClient::with_link(&served);
    let other = ConsoleClient::with_link(&served);
    for fields in [&[][..], &[("csrf", "")], &[("csrf", other.csrf().as_str())]] {
        let request = form("/console/sign-out", fields).with("cookie", &person.cookie);
        assert_eq!(served.send(&request).status, 403, "{fields:?}");
    }
    assert_eq!(person.get("/").status, 200, "the session goes on");
}

#[test]
fn a_request_from_a_page_of_another_site_is_refused() {
    let site = "https://other.example";
    let served = ServerLaunchOptions::over(&TempWorkspace::new())
        .set("server_allowed_origins", site)
        .served();
    let person = ConsoleClient::with_link(&served);
    let get = TestHttpRequest::bare("GET", "/console/calls").with("cookie", &person.cookie);
    assert_eq!(served.send(&get.clone().with("origin", site)).status, 403);
    assert_eq!(served.send(&get.clone().with("origin", "null")).status, 403);
    assert_eq!(served.send(&get.clone().with("sec-fetch-site", "cross-site")).status, 403);
    let own = format!("http://{}", served.addr);
    assert_eq!(served.send(&get.with("origin", &own)).status, 200);
}

#[test]
fn every_answer_forbids_foreign_content_frames_and_caches() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let person = ConsoleClient::with_link(&served);
    for target in ["/", "/console/calls", "/console/sign-in", "/console/nothing"] {
        let answer = person.get(target);
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(
            policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(answer.header("x-frame-options"), Some("DENY"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("referrer-policy"), Some("same-origin"));
        assert!(!answer.text().contains("style=\"") && !answer.text().contains("onclick"));
    }
}

#[test]
fn the_setting_removes_the_console() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_console", "off").served();
    for page in PAGES {
        assert_eq!(served.send(&TestHttpRequest::bare("GET", page)).status, 404, "{page}");
    }
}

#[test]
fn a_cookie_that_somebody_else_chose_never_becomes_a_session() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let chosen = format!("toolgate_console={}", "ab".repeat(32));
    let token = one_time_token(&served);
    let request = form("/console/sign-in", &[("token", &token), ("next", "//evil.example/")]);
    let answer = served.send(&request.with("cookie", &chosen));
    assert_eq!((answer.status, answer.header("location")), (303, Some("/")), "{answer:?}");
    assert!(!answer.header("set-cookie").unwrap().starts_with(&chosen), "{answer:?}");
    let page = served.send(&TestHttpRequest::bare("GET", "/").with("cookie", &chosen));
    assert_eq!((page.status, page.header("location")), (303, Some("/console/sign-in")));
    for path in
        ["//evil.example/", "/console//evil.example/", "/console/sign-in?next=//evil.example/"]
    {
        let answer = served.send(&TestHttpRequest::bare("GET", path));
        let location = answer.header("location").unwrap_or("/");
        assert!(location.starts_with('/') && !location.starts_with("//"), "{path}: {answer:?}");
    }
}
