//! Tests of messages of client sessions that the servers of a fleet share.

use super::*;
use crate::jobs::postgres::session_messages::session_tag;

const SESSION: SessionDigest = [7; 32];

fn message(state: Option<&str>, content: &str) -> NewSessionMessage {
    NewSessionMessage { state: state.map(str::to_owned), content: content.as_bytes().to_vec() }
}

/// Returns the stored messages of [`SESSION`]: state, content, and true if `store` received it.
async fn stored(store: &PostgresStore) -> Vec<(Option<String>, String, bool)> {
    let messages = store.session_messages().messages(&SESSION).await.expect("an answer");
    let one = |message: StoredSessionMessage| {
        let content = String::from_utf8(message.content).expect("text");
        (message.state, content, message.is_own)
    };
    messages.into_iter().map(one).collect()
}

async fn publish(
    store: &PostgresStore,
    caller: &str,
    message: NewSessionMessage,
) -> SessionMessageOutcome {
    let published =
        store.session_messages().publish(&SESSION, &Caller::with_key(caller), message).await;
    published.expect("an answer")
}

#[tokio::test]
async fn each_part_of_a_sessions_state_has_one_message_until_it_expires() {
    let place = TestDatabaseLocation::start();
    let [one, two] = [place.open_long().await, place.open_long().await];
    let messages = two.session_messages();
    let mut notifications = messages.notifications();
    for (state, content) in [
        (Some("level"), "info"),
        (None, "answer"),
        (Some("watch a"), "a"),
        (Some("level"), "debug"),
    ] {
        let outcome = publish(&one, "ada", message(state, content)).await;
        assert_eq!(outcome, SessionMessageOutcome::Stored);
        let notified = tokio::time::timeout(LEASE_WAIT, notifications.next()).await;
        // If the connection for notifications has just opened, any session may have messages.
        let notified = notified.expect("a notification");
        assert!(notified.is_none_or(|session| session == session_tag(&SESSION)), "{notified:?}");
    }
    let text = str::to_owned;
    let expected = |is_own| {
        [
            (None, text("answer"), is_own),
            (Some(text("watch a")), text("a"), is_own),
            (Some(text("level")), text("debug"), is_own),
        ]
    };
    assert_eq!(stored(&one).await, expected(true));
    assert_eq!(stored(&two).await, expected(false));
    let other = place.other_workspace().open_long().await;
    assert_eq!(stored(&other).await, []);
    place
        .server
        .run("update toolgate_fleet.session_messages set until = now() where state is null");
    assert_eq!(stored(&two).await, expected(false)[1..]);
    two.remove_expired(at(0), 10).await.expect("an answer");
    let count = place.server.run("select count(*) from toolgate_fleet.session_messages");
    assert_eq!(count.trim(), "2");
}

#[tokio::test]
async fn a_message_is_refused_if_it_is_too_long_or_its_caller_has_too_many() {
    let place = TestDatabaseLocation::start();
    let store = place.open_long().await;
    let long = message(None, &"x".repeat((4 << 20) + 1));
    let refused = publish(&store, "ada", long).await;
    let SessionMessageOutcome::Refused(why) = refused else { panic!("{refused:?}") };
    assert!(why.contains("4194305 bytes"), "{why}");
    place.server.run(
        "insert into toolgate_fleet.session_messages (workspace, session, caller, server, content, \
         until) select 'first', 'x', 'key ada', 1, 'x', now() + interval '1 minute' \
         from generate_series(1, 1024)",
    );
    let refused = publish(&store, "ada", message(None, "one more")).await;
    assert!(matches!(refused, SessionMessageOutcome::Refused(_)), "{refused:?}");
    let outcome = publish(&store, "bob", message(None, "of another caller")).await;
    assert_eq!(outcome, SessionMessageOutcome::Stored);
    place.server.run("update toolgate_fleet.session_messages set until = now()");
    let outcome = publish(&store, "ada", message(None, "later")).await;
    assert_eq!(outcome, SessionMessageOutcome::Stored);
}
