//! `/health`, `/ready`, models, pins and cells.

use serde_json::json;

use super::*;
use crate::scheduler::{Cells, PinStatus};

fn pin(name: &str, n_done: usize) -> PinStatus {
    PinStatus {
        name: name.into(),
        is_configured: true,
        is_public: true,
        tier: if n_done == 3_000 { "cells" } else { "disk" },
        since: std::time::Instant::now(),
        n_tokens: 3_000,
        n_done,
        is_warm: n_done == 3_000,
        has_failed: false,
        n_hits: 4,
        n_reused: 9_000,
        file_fault: None,
    }
}

fn script(pins: Vec<PinStatus>, prefill_tokens_per_second: u64) -> Script {
    let cells = Cells { total: 64, free: 30, evictable: 20, pinned: 10, held: 4, reserved: 6 };
    let status = Status { pins, cells, n_running: 2, n_waiting: 1, prefill_tokens_per_second, ..Status::default() };
    Script { status, ..Script::default() }
}

#[tokio::test]
async fn alive_is_not_ready() {
    let running = start(script(vec![pin("house", 0)], 0)).await;
    assert_eq!(running.get("/health").await.status, 200);
    assert_eq!(running.get("/ready").await.status, 503);
}

#[tokio::test]
async fn warming_shows_how_far_it_is() {
    let running = start(script(vec![pin("house", 3_000), pin("kids", 500)], 400)).await;
    let reply = running.get("/ready").await;
    assert_eq!(reply.status, 503);
    insta::assert_snapshot!(reply.body, @r#"{"status":"warming","memory":null,"pins":[{"name":"house","tokens":3000,"done":3000,"warm":true},{"name":"kids","tokens":3000,"done":500,"warm":false}],"tokens_per_second":400,"seconds_left":7}"#);
    let unmeasured = start(script(vec![pin("kids", 0)], 0)).await.get("/ready").await;
    assert_eq!(unmeasured.json()["seconds_left"], json!(null));
}

#[tokio::test(start_paused = true)]
async fn ready_is_warm_or_degraded_after_the_start_wait() {
    let warm = start(script(vec![pin("house", 3_000)], 400)).await.get("/ready").await;
    assert_eq!((warm.status, &warm.json()["status"]), (200, &json!("ready")));
    let without_pins = start(script(vec![], 0)).await.get("/ready").await;
    assert_eq!(without_pins.status, 200);

    let running = start(script(vec![pin("house", 5)], 400)).await;
    assert_eq!(running.get("/ready").await.status, 503);
    tokio::time::advance(Duration::from_secs(120)).await;
    let degraded = running.get("/ready").await;
    assert_eq!((degraded.status, &degraded.json()["status"]), (200, &json!("degraded")));
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let running = start(Script::default()).await;
    let list = running.get("/v1/models").await;
    insta::assert_snapshot!(list.redacted(), @r#"
    HTTP/1.1 200 OK
    content-type: application/json
    x-request-id: <id>
    content-length: 170
    connection: close
    date: <now>

    {"object":"list","data":[{"id":"house","object":"model","created":<seconds>,"owned_by":"hob"},{"id":"smol/135m","object":"model","created":<seconds>,"owned_by":"hob"}]}
    "#);
    let model = running.get("/v1/models/smol/135m").await;
    assert_eq!(model.json()["id"], "smol/135m");
    let unknown = running.get("/v1/models/gpt-9").await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["error"]["message"], "model `gpt-9` is not here; there are: house, smol/135m");
}

#[tokio::test]
async fn pins_and_cells_can_be_watched() {
    let running = start(script(vec![pin("house", 3_000)], 400)).await;
    insta::assert_snapshot!(running.get("/hob/v1/pins").await.body, @r#"{"pins":[{"name":"house","tokens":3000,"done":3000,"warm":true,"configured":true,"public":true,"tier":"cells","age_s":0,"hits":4,"reused":9000,"saved_s":22.5}]}"#);
    insta::assert_snapshot!(running.get("/hob/v1/cache").await.body, @r#"{"cells":{"total":64,"free":30,"evictable":20,"pinned":10,"held":4,"reserved":6},"running":2,"waiting":1,"prefill_tokens_per_second":400,"adapter_switches":0}"#);
}

fn row(id: &str) -> RequestRow {
    RequestRow {
        id: id.into(),
        at_ms: 1_796_069_170_000,
        client: "127.0.0.1".into(),
        profile: Some("house".into()),
        dialect: "openai".into(),
        finish: "stop".into(),
        n_prompt: 12,
        n_reused: 9,
        n_computed: 3,
        n_generated: 6,
        queue_ms: 1.5,
        ttft_ms: Some(40.0),
        prefill_ms: 31.0,
        decode_ms: 120.0,
        cause: "appended".into(),
        miss_at: 9,
        plan: None,
    }
}

#[tokio::test]
async fn requests_are_told_newest_first_and_found_by_their_id() {
    let rows: Vec<RequestRow> = (0..60).rev().map(|n| row(&format!("r{n}"))).collect();
    let running = start(Script { rows: Some(rows), ..Script::default() }).await;
    let ids = |reply: Reply| -> Vec<String> {
        let json = reply.json();
        let requests = json["requests"].as_array().unwrap_or_else(|| panic!("{}", reply.body));
        requests.iter().map(|account| account["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(running.get("/hob/v1/requests?limit=2").await), ["r59", "r58"]);
    assert_eq!(ids(running.get("/hob/v1/requests").await).len(), 50);
    insta::assert_snapshot!(running.get("/hob/v1/requests/r7").await.body, @r#"{"id":"r7","at_ms":1796069170000,"client":"127.0.0.1","profile":"house","dialect":"openai","finish":"stop","tokens":{"prompt":12,"reused":9,"computed":3,"generated":6},"ms":{"queue":1.5,"ttft":40.0,"prefill":31.0,"decode":120.0},"cause":"appended","first_computed":{"token":9,"section":null,"class":null,"section_offset":null},"lost":{"tokens":0,"seconds":0.0},"remedy":null,"plan":null}"#);
    let unknown = running.get("/hob/v1/requests/r70").await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("unknown_request")));
    for limit in ["0", "1001", "many", ""] {
        let refused = running.get(&format!("/hob/v1/requests?limit={limit}")).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("limit")), "{limit}");
    }
}

#[tokio::test]
async fn a_house_without_telemetry_says_so() {
    let running = start(Script { rows: None, ..Script::default() }).await;
    for path in ["/hob/v1/requests", "/hob/v1/requests/r1"] {
        let reply = running.get(path).await;
        assert_eq!((reply.status, reply.body.contains("telemetry is off")), (503, true), "{}", reply.body);
    }
    running.assert_answers().await;
}

#[tokio::test]
async fn what_was_said_is_remembered_with_its_tokens() {
    let running = start(Script::default()).await;
    for stream in [false, true] {
        let body = json!({"model": "house", "stream": stream, "messages": [{"role": "user", "content": "oven?"}]});
        assert_eq!(running.post(body.to_string()).await.status, 200);
        let spoken = running.fake.script.lock().unwrap().remembered.pop().unwrap();
        assert_eq!((spoken.opening.as_str(), spoken.text.as_str()), ("assistant\n", "The oven is off."));
        assert_eq!((spoken.tokens.len(), spoken.record), (6, Some(7)));
    }
}
