//! Sends a request, and answers the questions that the server asks before its result.

use serde_json::{Value, json};

use super::{MODERN, TestClientTransport, TestMcpClient};

/// Sends a request, and answers each question of the server with `answer`. Returns the final answer
/// and the questions.
#[track_caller]
pub(crate) fn converse(
    client: &mut TestMcpClient,
    method: &str,
    params: Value,
    answer: impl Fn(&Value) -> Value,
) -> (Value, Vec<Value>) {
    let mut requests = Vec::new();
    if client.revision == MODERN {
        let mut params = params;
        for _round in 0..10 {
            let mut reply = client.ask(method, params.clone());
            if reply["result"]["resultType"] != "input_required" {
                return (reply, requests);
            }
            let mut responses = json!({});
            for (key, request) in reply["result"]["inputRequests"].as_object().into_iter().flatten()
            {
                responses[key] = answer(request);
                requests.push(request.clone());
            }
            params["inputResponses"] = responses;
            if let Some(state) = reply["result"].get_mut("requestState") {
                params["requestState"] = state.take();
            }
        }
        panic!("too many questions: {requests:?}");
    }
    let message = client.request(method, params);
    let respond = |request: &Value| {
        let id = &request["id"];
        let result = answer(request);
        json!({ "jsonrpc": "2.0", "id": id, "result": result })
    };
    if let TestClientTransport::Stdio(stdio) = &mut client.wire {
        stdio.send(&message);
        loop {
            let received = stdio.receive();
            match (received.get("method"), received.get("id")) {
                (Some(_), Some(_)) => {
                    stdio.send(&respond(&received));
                    requests.push(received);
                }
                (None, Some(id)) if *id == message["id"] => return (received, requests),
                _ => {}
            }
        }
    }
    let post = client.post(&message);
    let TestClientTransport::Http(served) = &client.wire else { unreachable!() };
    let mut connection = served.connect();
    connection.post(&post);
    let head = connection.head();
    if !head.is_stream() {
        let length: usize = head.header("content-length").unwrap().parse().unwrap();
        return (serde_json::from_slice(&connection.take(length)).unwrap(), requests);
    }
    while let Some(received) = connection.event() {
        match (received.get("method"), received.get("id")) {
            (Some(_), Some(_)) => {
                let response = client.response(&respond(&received));
                assert_eq!((response.status, response.body.len()), (202, 0), "{response:?}");
                requests.push(received);
            }
            (None, Some(id)) if *id == message["id"] => return (received, requests),
            _ => {}
        }
    }
    panic!("the stream ended without the answer");
}
