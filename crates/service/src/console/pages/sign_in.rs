//! Pages of the console for people who are not signed in.

use maud::{Markup, html};

use crate::console::SIGN_IN_PATH;
use crate::console::layout::bare_page;

/// Returns the console page for signing in. If `has_keys` is true, the page asks for a key or
/// token. Otherwise, a click signs in with the `token` of a one-time link. `why` is the reason why
/// an earlier attempt failed.
pub(crate) fn page(has_keys: bool, token: Option<&str>, why: Option<&str>) -> Markup {
    let content = html! {
        @if let Some(why) = why { p .notice role="alert" { (why) } }
        @match (has_keys, token) {
            (false, Some(token)) => {
                form method="post" action=(SIGN_IN_PATH) data-submit {
                    input type="hidden" name="token" value=(token);
                    button .primary { "Open the console" }
                }
            }
            (false, None) => {
                p {
                    "This page shows what agents do on this machine. To get a link that opens the page once, "
                    "run this command in a terminal: " code { "toolgate console" }
                }
            }
            (true, _) => {
                form method="post" action=(SIGN_IN_PATH) {
                    div .field {
                        label for="key" { "Key or token" }
                        input #key name="key" type="password" autocomplete="off" required
                            aria-describedby="key-hint";
                        p #key-hint .hint {
                            "The key or token needs one of these roles: " code { "console" } " (look) or "
                            code { "admin" } " (act). To create a key, run: "
                            code { "toolgate key new NAME --role admin" }
                        }
                    }
                    button .primary { "Sign in" }
                }
            }
        }
    };
    bare_page("Console", &content)
}

/// Returns the console page that shows `why` a request was refused.
pub(crate) fn problem(why: &str) -> Markup {
    let content = html! {
        p .notice role="alert" { (why) }
        p { a href="/" { "To the console" } }
    };
    bare_page("Not done", &content)
}
