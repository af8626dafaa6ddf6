//! The real writer, killed while it writes the pins of the real model: what can be seen is whole, and the next start goes on with it.
//!
//! The test starts itself as a child whose writer waits after each step until its parent lets it go on; the parent sends SIGKILL
//! at a chosen step.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use hob::engine::{KvType, Threads};
use hob::kv::{Segment, SegmentKey};
use hob::private::WriteStep;
use hob::request::{Owner, Priority, Sampling, Token, TokenPrompt};
use hob::scheduler::{
    self, Budgets, Disk, Lower, OpenLower, Opened, Options, Pin, SchedulerHandle, Speculation, Submission,
};
use hob::snapshots::{Busy, Folder, Identity, Report, Secret, Snapshots, SnapshotsHandle};
use hob::telemetry::Record;

use super::house::{ALICE, Answer, answer, prompt, smollm2, text};
use super::solo::solo_text;

/// The child's folder; not set in the parent.
const FOLDER: &str = "HOB_TEST_WRITING_FOLDER";
const N_PIN: usize = 80;
const N_SAID: usize = 6;
const KEEP: Duration = Duration::MAX;

fn pins() -> [Vec<Token>; 2] {
    ["House", "Garage"].map(|name| text(smollm2(), name, N_PIN))
}

fn open(path: &Path, opened: &Opened) -> Folder {
    let facts = vec![("model", "demo".to_owned()), ("context", opened.saved_form.replace('\n', " "))];
    Folder::open(path.to_owned(), Identity::new(facts), Secret([7; 32])).unwrap()
}

fn lower(disk: impl Disk + 'static) -> Lower {
    let budgets = Budgets { ram: 0, disk: 1 << 30, learned: 0 };
    Lower { budgets, disk: Some(Box::new(disk)), wait: Duration::from_secs(60) }
}

/// What is computed and restored is told to `record`.
fn start(open_lower: OpenLower, record: scheduler::Recorder) -> (SchedulerHandle, JoinHandle<()>) {
    let pin = |(name, tokens)| Pin::of_house(name, TokenPrompt { tokens, cuts: vec![] });
    let options = Options {
        n_cells: 1024,
        parallel: 1,
        queue: 4,
        kv_type: KvType::Q8_0,
        threads: Threads::same(1),
        pins: ["house", "garage"].into_iter().zip(pins()).map(pin).collect(),
        record,
        open_lower,
        speculation: Speculation::Off,
    };
    scheduler::start(smollm2().clone(), options).unwrap()
}

/// Writes on a thread of its own, step by step.
struct StepByStep(mpsc::SyncSender<Segment>);

impl Disk for StepByStep {
    fn write(&self, segment: Segment) -> Result<(), Busy> {
        self.0.try_send(segment).map_err(|_| Busy)
    }

    fn read(&self, _: SegmentKey) -> Result<(), Busy> {
        Err(Busy)
    }

    fn remove(&self, _: SegmentKey) -> Result<(), Busy> {
        Err(Busy)
    }

    fn touch(&self, _: SegmentKey) {}

    fn forget(&self, _: Option<Owner>) -> Result<(), Busy> {
        Err(Busy)
    }
}

/// The child: computes the pins and writes them, until it is killed.
fn write_step_by_step(path: PathBuf) {
    let open_lower: OpenLower = Box::new(move |opened, report| {
        let folder = open(&path, opened);
        let (door, segments) = mpsc::sync_channel::<Segment>(4);
        report(Report::Swept(folder.sweep(SystemTime::now(), KEEP).unwrap()));
        std::thread::spawn(move || {
            let mut go_on = std::io::stdin().lines();
            for segment in segments {
                let begun = Instant::now();
                let mut after = |step: WriteStep| {
                    // Past the test runner, which keeps what is printed.
                    let _ = writeln!(std::io::stderr().lock(), "step {step:?}");
                    go_on.next().expect("the parent lets go on, or kills").unwrap();
                };
                let n_file_bytes = folder.write(&segment, &mut after).unwrap();
                report(Report::Written { key: segment.header.key, n_file_bytes, time: begun.elapsed() });
            }
        });
        lower(StepByStep(door))
    });
    let (_handle, thread) = start(open_lower, Box::new(|_| ()));
    thread.join().unwrap();
}

/// A house whose pins are warm, over the folder that the child left; how many tokens of them came from there.
fn start_again(path: PathBuf) -> (SchedulerHandle, JoinHandle<()>, usize) {
    let (records, told) = mpsc::sync_channel(1024);
    let open_lower: OpenLower = Box::new(move |opened, report| {
        let (door, inbox) = SnapshotsHandle::new();
        let snapshots = Snapshots::new(open(&path, opened), KEEP, report);
        std::thread::spawn(move || snapshots.run(inbox));
        lower(door)
    });
    let record = move |record| {
        if let Record::Restore(restore) = record {
            let _ = records.send(restore.n_tokens);
        }
    };
    let (handle, thread) = start(open_lower, Box::new(record));
    let begun = Instant::now();
    while !handle.status().pins.iter().all(|pin| pin.is_warm) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", handle.status());
        std::thread::yield_now();
    }
    (handle, thread, told.try_iter().sum())
}

fn ask(handle: &SchedulerHandle, prompt: TokenPrompt) -> Answer {
    let (events, receiver) = tokio::sync::mpsc::channel(256);
    let submission = Submission {
        prompt,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        rules: Default::default(),
        n_logprobs: None,
        max_tokens: Some(N_SAID),
        stop: vec![],
        owner: ALICE,
        adapters: Default::default(),
        priority: Priority::default(),
        received: Instant::now(),
        label: Default::default(),
        events,
    };
    handle.submit(submission).unwrap();
    answer(receiver)
}

#[test]
fn pins_being_written_when_sigkill_comes_are_whole_or_not_there() {
    if let Some(path) = std::env::var_os(FOLDER) {
        return write_step_by_step(PathBuf::from(path));
    }
    let name = "real::writing::pins_being_written_when_sigkill_comes_are_whole_or_not_there";
    let moments = [(0, WriteStep::Begun), (1, WriteStep::Synced), (1, WriteStep::Renamed)];
    for (moment, n_seen) in moments.into_iter().zip([0, 1, 2]) {
        let temp = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(FOLDER, temp.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let steps = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut steps = steps.filter_map(|line| line.strip_prefix("step ").map(str::to_owned));
        let mut go_on = child.stdin.take().unwrap();
        let mut n_pins = 0;
        loop {
            let step = steps.next().expect("it writes until it is killed");
            if (n_pins, step.as_str()) == (moment.0, format!("{:?}", moment.1).as_str()) {
                break;
            }
            n_pins += usize::from(step == "FolderSynced");
            go_on.write_all(b"\n").unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();

        let files = temp.path().read_dir().unwrap().map(|entry| entry.unwrap().path());
        let n_visible = files.filter(|path| path.extension().is_some_and(|ending| ending == "kv")).count();
        assert_eq!(n_visible, n_seen, "killed at {moment:?}");
        let (handle, thread, n_restored) = start_again(temp.path().to_owned());
        // What can be seen was believed, to the last byte, and nothing else was.
        assert_eq!(n_restored, n_seen * N_PIN, "killed at {moment:?}");
        for pin in pins() {
            let prompt = prompt(&[&pin, &text(smollm2(), "Kitchen", 12)]);
            let expected = solo_text(smollm2(), KvType::Q8_0, &prompt.tokens, N_SAID);
            let answer = ask(&handle, prompt);
            assert_eq!((answer.n_cached(), answer.text), (N_PIN, expected), "killed at {moment:?}");
        }
        handle.stop();
        thread.join().unwrap();
    }
}
