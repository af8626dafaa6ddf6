//! What is accepted, what is refused, and in which words.

use super::raw::{RawAdapter, RawLive, SECTIONS};
use super::*;
use crate::request::Priority;
use crate::sources::{LoopbackUrl, Source};

const EXAMPLE: &str = include_str!("../../config.example.toml");

fn surroundings() -> Surroundings {
    Surroundings {
        file: PathBuf::from("config.toml"),
        folder: PathBuf::from("/etc/hob"),
        state_folder: Some(PathBuf::from("/var/lib/hob")),
        processors: Processors { n_cores: Some(4), n_available: 8 },
        keys: None,
    }
}

fn examine(text: &str) -> (Config, Vec<Fault>) {
    let surroundings = surroundings();
    let mut faults = Faults::of(&surroundings.file);
    let raw = Raw::read(text, &mut faults);
    (check(raw, &surroundings, &mut faults), faults.found)
}

fn accepted(text: &str) -> Config {
    let (config, faults) = examine(text);
    assert_eq!(faults, []);
    config
}

fn refused(text: &str) -> String {
    let (_, faults) = examine(text);
    assert_ne!(faults, [], "{text}");
    ConfigError::Faults(faults).to_string()
}

/// The example with the keys that have no default.
fn full_example() -> String {
    let is_key = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
    EXAMPLE.lines().map(|line| if is_key(&line) { &line[1..] } else { line }).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_holds_the_defaults() {
    assert_eq!(accepted(EXAMPLE), accepted(""));
}

#[test]
fn every_key_stands_in_the_example() {
    let example: toml::Table = toml::from_str(&full_example()).unwrap();
    for (section, keys) in SECTIONS {
        let table = match &example[*section] {
            toml::Value::Array(entries) => entries[0].as_table().unwrap(),
            table => table.as_table().unwrap(),
        };
        assert_eq!(table.keys().collect::<Vec<_>>(), {
            let mut sorted = keys.to_vec();
            sorted.sort();
            sorted
        });
    }
}

#[test]
fn the_examples_profile_is_accepted() {
    assert_eq!(
        accepted(&full_example()).profiles,
        [ProfileFiles {
            name: "house".to_owned(),
            system: Some("/etc/hob/house.md".into()),
            tools: Some("/etc/hob/tools.json".into()),
            documents: vec!["documents/*.md".to_owned()],
            max_tokens: Some(512),
            thinking: Some(false),
            adapters: Some(AdapterSet::NONE.with(0, Scale::ONE)),
            live: vec![Entry {
                name: "weather".to_owned(),
                source: Source::Command(vec!["/usr/local/bin/weather".to_owned(), "--short".to_owned()]),
                refresh: Duration::from_secs(30),
                timeout: Duration::from_secs(5),
                n_bytes_max: 4096,
            }],
            has_clock: true,
        }]
    );
}

#[test]
fn an_empty_file_means_the_defaults() {
    insta::assert_debug_snapshot!(accepted(""), @r#"
    Config {
        file: "config.toml",
        folder: "/etc/hob",
        state_folder: "/var/lib/hob",
        server: Server {
            listen: [
                Tcp(
                    127.0.0.1:8088,
                ),
            ],
            max_body: 8388608,
            queue: 64,
            start_wait: 120s,
            access: Access {
                allow_anonymous: false,
                hosts: [],
                origins: [],
                clients: [],
            },
        },
        model: Model {
            path: "/etc/hob/model.gguf",
            name: "model",
            context: 16384,
            parallel: 4,
            gpu: Auto,
            gpu_layers: All,
            kv_type: F16,
            threads: Threads {
                decode: 3,
                prefill: 3,
            },
            speculate: true,
            chat_template: None,
            adapters: [],
        },
        cache: Cache {
            folder: "/var/lib/hob/kv",
            ram: 1073741824,
            disk: 8589934592,
            learned_pins: 0.25,
            keep_days: 7,
        },
        layout: Layout {
            mode: Safe,
        },
        telemetry: Telemetry {
            path: "/var/lib/hob/hob.sqlite",
            keep_days: 90,
            flush: 60s,
        },
        profiles: [],
    }
    "#);
}

#[test]
fn every_value_can_be_set() {
    let config = accepted(
        r#"
        [server]
        listen = ["localhost:1", "[::1]:2", "0.0.0.0:3", "unix:hob.sock", "unix:/run/hob.sock"]
        max_body = "64KiB"
        queue = 1
        start_wait = "30s"
        allow_anonymous = true
        [model]
        path = "../models/Smol.Q4.gguf"
        context = 256
        parallel = 64
        gpu = "off"
        gpu_layers = 12
        kv_type = "q8_0"
        threads = 2
        speculate = false
        chat_template = "/chat.jinja"
        [telemetry]
        path = "here.sqlite"
        keep_days = 1
        flush_seconds = 3600
        "#,
    );
    insta::assert_debug_snapshot!((&config.server, &config.model, &config.telemetry), @r#"
    (
        Server {
            listen: [
                Tcp(
                    127.0.0.1:1,
                ),
                Tcp(
                    [::1]:2,
                ),
                Tcp(
                    0.0.0.0:3,
                ),
                Unix(
                    "/etc/hob/hob.sock",
                ),
                Unix(
                    "/run/hob.sock",
                ),
            ],
            max_body: 65536,
            queue: 1,
            start_wait: 30s,
            access: Access {
                allow_anonymous: true,
                hosts: [],
                origins: [],
                clients: [],
            },
        },
        Model {
            path: "/etc/hob/../models/Smol.Q4.gguf",
            name: "Smol.Q4",
            context: 256,
            parallel: 64,
            gpu: Off,
            gpu_layers: Count(
                12,
            ),
            kv_type: Q8_0,
            threads: Threads {
                decode: 2,
                prefill: 2,
            },
            speculate: false,
            chat_template: Some(
                "/chat.jinja",
            ),
            adapters: [],
        },
        Telemetry {
            path: "/etc/hob/here.sqlite",
            keep_days: 1,
            flush: 3600s,
        },
    )
    "#);
}

#[test]
fn all_faults_are_told_at_once() {
    let text = r#"
        [server]
        listen = ["0.0.0.0:8088", "house.local:80", "127.0.0.1", "unix:", "[::]:1", "127.0.0.1:70000"]
        max_body = "8MB"
        queue = 10001
        start_wait = 120
        allow_anonymous = "yes"
        [model]
        path = 3
        name = " blank"
        context = 255
        parallel = 0
        gpu = "cuda"
        gpu_layers = "some"
        kv_type = "f32"
        threads = -1
        chat_template = []
        [telemetry]
        path = false
        keep_days = 0
        flush_seconds = 1.5
    "#;
    insta::assert_snapshot!(refused(text), @r#"
    config.toml: server.listen = "house.local:80": must be "host:port" with an IP address or localhost as host, or "unix:/path"
    config.toml: server.listen = "127.0.0.1": must be "host:port" with an IP address or localhost as host, or "unix:/path"
    config.toml: server.listen = "unix:": must be "host:port" with an IP address or localhost as host, or "unix:/path"
    config.toml: server.listen = "127.0.0.1:70000": must be "host:port" with an IP address or localhost as host, or "unix:/path"
    config.toml: server.max_body = "8MB": must be "1KiB" to "1GiB", in B, KiB, MiB or GiB
    config.toml: server.queue = 10001: must be 1 to 10000
    config.toml: server.start_wait = 120: must be "1s" to "1d", in s, m, h or d
    config.toml: server.allow_anonymous = "yes": must be true or false
    config.toml: model.path = 3: must be a text in quotes
    config.toml: model.name = " blank": must be 1 to 64 characters, without control characters and without blanks at its ends
    config.toml: model.context = 255: must be 256 to 1048576
    config.toml: model.parallel = 0: must be 1 to 64
    config.toml: model.gpu = "cuda": must be one of "auto", "required", "off"
    config.toml: model.gpu_layers = "some": must be "all" or 0 to 1000
    config.toml: model.kv_type = "f32": must be one of "f16", "q8_0", "q4_0"
    config.toml: model.threads = -1: must be 0 to 512
    config.toml: model.chat_template = []: must be a text in quotes
    config.toml: telemetry.path = false: must be a text in quotes
    config.toml: telemetry.flush_seconds = 1.5: must be 1 to 3600
    config.toml: telemetry.keep_days = 0: must be 1 to 3650
    config.toml: server.listen = "0.0.0.0:8088": can be reached from other machines, and no [[client]] has a key: `hob key new NAME` makes one; else it must be a loopback address, or server.allow_anonymous = true must say that everybody may ask
    config.toml: server.listen = "[::]:1": can be reached from other machines, and no [[client]] has a key: `hob key new NAME` makes one; else it must be a loopback address, or server.allow_anonymous = true must say that everybody may ask
    "#);
}

#[test]
fn a_faulty_value_does_not_hide_behind_its_neighbours() {
    insta::assert_snapshot!(refused("model.parallel = 0"), @"config.toml: model.parallel = 0: must be 1 to 64");
    insta::assert_snapshot!(refused("server.listen = []"), @"config.toml: server.listen = []: must name at least one address");
    insta::assert_snapshot!(refused("server.listen = \"127.0.0.1:8088\""), @r#"config.toml: server.listen = "127.0.0.1:8088": must be a list of texts in quotes"#);
    insta::assert_snapshot!(refused("server.listen = [1]"), @"config.toml: server.listen = [1]: must be a list of texts in quotes");
    insta::assert_snapshot!(refused("server = 1"), @"config.toml: server = 1: must be a section: write its head as [server]");
    insta::assert_snapshot!(refused("[profile]\nname = \"house\""), @r#"config.toml: profile = { name = "house" }: must be a list: write its head as [[profile]]"#);
    insta::assert_snapshot!(refused("profile = [1]"), @"config.toml: profile[0] = 1: must be a section: write its head as [[profile]]");
    insta::assert_snapshot!(refused("model.context = 2030-01-01"), @r#"config.toml: model.context = "2030-01-01": must be 256 to 1048576"#);
    insta::assert_snapshot!(refused("server.max_body = \"2GiB\""), @r#"config.toml: server.max_body = "2GiB": must be "1KiB" to "1GiB", in B, KiB, MiB or GiB"#);
    insta::assert_snapshot!(refused(&format!("model.kv_type = \"{}\"", "long\\n".repeat(1000))), @r#"config.toml: model.kv_type = "long\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlong\nlon…: must be one of "f16", "q8_0", "q4_0""#);
}

#[test]
fn an_unknown_key_is_told_with_the_one_that_was_meant() {
    let text = r#"
        sever.queue = 1
        colour = "red"
        [server]
        Queue = 1
        context = 1
        [model]
        paralel = 1
        kvtype = "f16"
        xyzzy = 1
        [[profile]]
        name = "house"
        document = []
    "#;
    insta::assert_snapshot!(refused(text), @"
    config.toml: colour: unknown key
    config.toml: model.kvtype: unknown key; did you mean model.kv_type?
    config.toml: model.paralel: unknown key; did you mean model.parallel?
    config.toml: model.xyzzy: unknown key
    config.toml: profile[0].document: unknown key; did you mean profile[0].documents?
    config.toml: server.Queue: unknown key; did you mean server.queue?
    config.toml: server.context: unknown key; did you mean model.context?
    config.toml: sever: unknown key; did you mean server?
    ");
}

#[test]
fn a_key_of_a_later_version_is_no_typing_error() {
    let text = r#"
        model.idle_release = "30m"
        telemetry.prompts = false
    "#;
    insta::assert_snapshot!(refused(text), @"
    config.toml: model.idle_release: this version of hob does not know this key yet
    config.toml: telemetry.prompts: this version of hob does not know this key yet
    ");
}

#[test]
fn a_text_that_is_no_toml_is_told_with_its_place() {
    insta::assert_snapshot!(refused("[server]\nqueue == 3"), @"config.toml: line 2, column 8: extra `=`, expected nothing");
    insta::assert_snapshot!(refused("[server]\nqueue = 3\nqueue = 4"), @"config.toml: line 3, column 1: duplicate key");
    insta::assert_snapshot!(refused("[server"), @"config.toml: line 1, column 8: unclosed table, expected `]`");
    refused(&format!("a = {}", "[".repeat(100_000)));
}

#[test]
fn names_of_profiles_are_unique() {
    let text = r#"
        model.path = "models/Smol.gguf"
        [[profile]]
        name = "house"
        [[profile]]
        name = "house"
        [[profile]]
        name = "Smol"
        [[profile]]
        max_tokens = 0
        [[profile]]
        name = ""
        [[profile]]
        name = "a\u0007b"
    "#;
    insta::assert_snapshot!(refused(text), @r#"
    config.toml: profile[1].name = "house": is the name of profile[0], too; must be another
    config.toml: profile[2].name = "Smol": is the model's name, too; must be another
    config.toml: profile[3].name: is missing: clients choose a profile by its name
    config.toml: profile[3].max_tokens = 0: must be 1 to 1048576
    config.toml: profile[4].name: is missing: clients choose a profile by its name
    config.toml: profile[5].name = "a\u{7}b": must be 1 to 64 characters, without control characters and without blanks at its ends
    "#);
}

#[test]
fn a_user_without_a_state_folder_must_say_where_to_write() {
    let surroundings = Surroundings {
        file: PathBuf::from("config.toml"),
        folder: PathBuf::from("/etc/hob"),
        state_folder: None,
        processors: Processors { n_cores: None, n_available: 1 },
        keys: None,
    };
    let mut faults = Faults::of(&surroundings.file);
    check(Raw::default(), &surroundings, &mut faults);
    insta::assert_snapshot!(faults.found[0], @"config.toml: telemetry.path: this user has no state folder; set it, or STATE_DIRECTORY in the environment");
}

#[test]
fn a_file_that_cannot_be_read_is_one_line() {
    let error = Config::load(Path::new("/missing/config.toml")).unwrap_err();
    insta::assert_snapshot!(error, @"/missing/config.toml: cannot be read: No such file or directory (os error 2)");
}

#[test]
fn every_key_of_a_live_entry_stands_in_the_example() {
    let example: toml::Table = toml::from_str(&full_example()).unwrap();
    let entries = example["profile"][0]["live"].as_array().unwrap();
    let mut keys: Vec<&str> =
        entries.iter().flat_map(|entry| entry.as_table().unwrap().keys().map(String::as_str)).collect();
    // The other two sources stand beside the first, in its comment.
    keys.extend(["file", "url"].into_iter().filter(|key| EXAMPLE.contains(&format!("{key} = "))));
    keys.sort_unstable();
    let mut expected = RawLive::KEYS.to_vec();
    expected.sort_unstable();
    assert_eq!(keys, expected);
}

#[test]
fn live_entries_are_read_in_their_order() {
    let config = accepted(
        r#"
        [[profile]]
        name = "house"
        [[profile.live]]
        name = "states"
        url = "http://localhost:1880/states?short"
        refresh = "2m"
        timeout = "1s"
        max = "1KiB"
        [[profile.live]]
        name = "door"
        file = "door.txt"
        [[profile.live]]
        name = "weather"
        command = ["bin/weather", "now"]
        [[profile]]
        name = "kids"
        [[profile.live]]
        clock = true
        "#,
    );
    let [house, kids] = &config.profiles[..] else { panic!("two profiles") };
    assert_eq!((house.has_clock, kids.has_clock, kids.live.len()), (false, true, 0));
    let entry = |name: &str, source| Entry {
        name: name.to_owned(),
        source,
        refresh: Duration::from_secs(30),
        timeout: Duration::from_secs(5),
        n_bytes_max: 4096,
    };
    let states = Entry {
        refresh: Duration::from_secs(120),
        timeout: Duration::from_secs(1),
        n_bytes_max: 1024,
        ..entry("states", Source::Url(LoopbackUrl::parse("http://127.0.0.1:1880/states?short").unwrap()))
    };
    let weather = Source::Command(vec!["/etc/hob/bin/weather".to_owned(), "now".to_owned()]);
    let door = Source::File("/etc/hob/door.txt".into());
    assert_eq!(house.live, [states, entry("door", door), entry("weather", weather)]);
}

#[test]
fn a_faulty_live_entry_is_named() {
    insta::assert_snapshot!(refused(
        r#"
        [[profile]]
        name = "house"
        [[profile.live]]
        name = "a"
        [[profile.live]]
        name = "b"
        url = "http://192.168.1.4:8123/"
        [[profile.live]]
        file = "c"
        [[profile.live]]
        clock = true
        refresh = "1m"
        [[profile.live]]
        name = "d"
        file = "d"
        command = []
        max = "1MiB"
        comand = ["x"]
        [[profile.live]]
        name = "e"
        file = "e"
        [[profile.live]]
        name = "e"
        file = "f"
        [[profile]]
        name = "kids"
        live = "clock"
        "#
    ), @r#"
    config.toml: profile[0].live[0]: must have one of clock = true, command, file and url
    config.toml: profile[0].live[1].url = "http://192.168.1.4:8123/": must be on this machine: its host must be localhost, 127.0.0.1 or [::1]
    config.toml: profile[0].live[2].name: is missing: the value stands behind it in the prompt
    config.toml: profile[0].live[3]: a clock stands alone: it is built in and takes no other key
    config.toml: profile[0].live[4].comand: unknown key; did you mean profile[0].live[4].command?
    config.toml: profile[0].live[4].command = []: must name a program
    config.toml: profile[0].live[4].max = "1MiB": must be "1B" to "64KiB", in B, KiB, MiB or GiB
    config.toml: profile[0].live[4]: must have one of clock = true, command, file and url
    config.toml: profile[0].live[6].name = "e": is the name of another entry, too
    config.toml: profile[1].live = "clock": must be a list: write its head as [[profile.live]]
    "#);
}

#[test]
fn clients_are_read_and_what_is_wrong_with_them_is_told() {
    let hash = "ab".repeat(32);
    let text = format!(
        r#"
        [[profile]]
        name = "house"
        [[client]]
        name = "phone"
        key_hash = "{hash}"
        layout = "off"
        priority = "background"
        profile = "house"
        routes = ["/v1/"]
        rate = "30/min"
        "#
    );
    let [client] = accepted(&text).server.access.clients.try_into().unwrap();
    let expected = ClientEntry {
        layout: Some(LayoutMode::Off),
        priority: Priority::Background,
        profile: Some("house".into()),
        routes: vec!["/v1/".into()],
        rate: Some(Rate { n_requests: 30, per: Duration::from_secs(60) }),
        ..ClientEntry::plain("phone".into(), KeyHash::parse(&hash).unwrap())
    };
    assert_eq!(client, expected);

    let text = r#"
        client = [
            { name = "all", key_hash = "00" },
            { name = "192.168.1.2" },
            { key_hash = "00" },
            { name = "a", key_hash = "hob-secret" },
            { name = "b", key_hash = "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd" },
            { name = "b", key_hash = "00" },
            { name = "c", key_hash = "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd", profile = "hose",
              routes = ["v1"], rate = "often", priority = "high", layout = "on" },
        ]
    "#;
    let faults = refused(text);
    assert!(!faults.contains("hob-secret"), "{faults}");
    insta::assert_snapshot!(faults, @r#"
    config.toml: client[0].name = "all": must be 1 to 64 of a-z, A-Z, 0-9, `.`, `_`, `-`, no address, and none of all, unix, public
    config.toml: client[1].name = "192.168.1.2": must be 1 to 64 of a-z, A-Z, 0-9, `.`, `_`, `-`, no address, and none of all, unix, public
    config.toml: client[2].name: is missing: logs and `hob forget` name a client by it
    config.toml: client[3].key_hash: must be 64 hexadecimal digits, as `hob key new` prints them
    config.toml: client[5].name = "b": is the name of another client, too
    config.toml: client[6].profile = "hose": is the name of no [[profile]]
    config.toml: client[6].layout = "on": must be one of "off", "observe", "safe", "optimise"
    config.toml: client[6].priority = "high": must be one of "interactive", "normal", "background"
    config.toml: client[6].routes[0] = "v1": must be a path, which stands for all below it, too: "/v1/", "/api/chat"
    config.toml: client[6].rate = "often": must be a number of requests per s, min, h or d: "30/min"
    config.toml: client: b and c have the same key; each needs its own
    "#);
}

#[test]
fn keys_come_as_a_credential_too() {
    let with = |keys: &str, text: &str| {
        let mut faults = Faults::of(Path::new("config.toml"));
        let surroundings = Surroundings { keys: Some(keys.to_owned()), ..surroundings() };
        let config = check(Raw::read(text, &mut faults), &surroundings, &mut faults);
        let told: Vec<String> = faults.found.iter().map(Fault::to_string).collect();
        (config.server.access.clients, told.join("\n"))
    };
    let listen = "server.listen = [\"0.0.0.0:8088\"]\n";
    let (clients, faults) =
        with("phone hob-1\n\ntablet hob-2\n", &format!("{listen}[[client]]\nname = \"phone\"\nrate = \"1/s\""));
    assert_eq!(faults, "");
    let shown: Vec<_> =
        clients.iter().map(|client| (client.name.as_str(), client.key, client.rate.is_some())).collect();
    assert_eq!(shown, [("phone", KeyHash::of("hob-1"), true), ("tablet", KeyHash::of("hob-2"), false)]);
    let (clients, faults) = with("secret-without-a-name\na k1 k2\na hob-1\na hob-2\n", "");
    assert_eq!(clients.len(), 1);
    assert!(!faults.contains("secret") && !faults.contains("hob-2"), "{faults}");
    assert_eq!(faults.lines().count(), 3, "{faults}");
}

#[test]
fn a_file_that_every_user_may_change_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, "").unwrap();
    for (mode, is_refused) in [(0o644, false), (0o660, false), (0o666, true), (0o602, true)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(Config::load(&file).is_err(), is_refused, "{mode:o}");
    }
}

#[test]
fn adapters_have_their_numbers_in_their_order_and_profiles_name_them() {
    let config = accepted(
        r#"
        [[model.adapter]]
        name = "butler"
        path = "butler.gguf"
        [[model.adapter]]
        name = "pirate"
        path = "/lora/pirate.gguf"
        scale = -0.5
        default = true
        [[profile]]
        name = "house"
        adapters = ["pirate", "butler"]
        [[profile]]
        name = "plain"
        adapters = []
        [[profile]]
        name = "silent"
        "#,
    );
    let half = Scale::new(-0.5).unwrap();
    let adapter = |name: &str, path: &str, scale, is_default| Adapter {
        name: name.to_owned(),
        path: path.into(),
        scale,
        is_default,
    };
    let expected = [
        adapter("butler", "/etc/hob/butler.gguf", Scale::ONE, false),
        adapter("pirate", "/lora/pirate.gguf", half, true),
    ];
    assert_eq!(config.model.adapters, expected);
    let sets: Vec<_> = config.profiles.iter().map(|profile| profile.adapters).collect();
    let both = AdapterSet::NONE.with(0, Scale::ONE).with(1, half);
    assert_eq!(sets, [Some(both), Some(AdapterSet::NONE), None]);
}

#[test]
fn faults_of_adapters_are_told_with_their_places() {
    insta::assert_snapshot!(refused(r#"
        [[model.adapter]]
        path = "butler.gguf"
        scale = 11
        [[model.adapter]]
        name = "cook"
        path = 3
        scale = "strong"
        [[model.adapter]]
        name = "cook"
        pth = "cook.gguf"
        default = 1
        [[profile]]
        name = "house"
        adapters = ["cook", "waiter"]
        "#), @r#"
    config.toml: model.adapter[0].name: is missing: an adapter has a name and a GGUF file
    config.toml: model.adapter[0].scale = 11.0: must be -10.0 to 10.0
    config.toml: model.adapter[1].path = 3: must be a text in quotes
    config.toml: model.adapter[1].scale = "strong": must be -10.0 to 10.0
    config.toml: model.adapter[2].pth: unknown key; did you mean model.adapter[2].path?
    config.toml: model.adapter[2].name = "cook": is the name of another adapter, too
    config.toml: model.adapter[2].path: is missing: an adapter has a name and a GGUF file
    config.toml: model.adapter[2].default = 1: must be true or false
    config.toml: profile[0].adapters = "waiter": is the name of no [[model.adapter]]
    "#);
    insta::assert_snapshot!(refused("model.adapter = [1]"), @"config.toml: model.adapter[0] = 1: must be a section: write its head as [[model.adapter]]");
    insta::assert_snapshot!(refused("model.adapter = \"butler.gguf\""), @r#"config.toml: model.adapter = "butler.gguf": must be a list: write its head as [[model.adapter]]"#);
    let many: String = (0..9).map(|n| format!("[[model.adapter]]\nname = \"a{n}\"\npath = \"a\"\n")).collect();
    insta::assert_snapshot!(refused(&many), @"config.toml: model.adapter: has 9 entries; must have at most 8");
}

#[test]
fn every_key_of_an_adapter_stands_in_the_example() {
    let example: toml::Table = toml::from_str(&full_example()).unwrap();
    let keys: Vec<&String> = example["model"]["adapter"][0].as_table().unwrap().keys().collect();
    let mut expected = RawAdapter::KEYS.to_vec();
    expected.sort_unstable();
    assert_eq!(keys, expected);
}
