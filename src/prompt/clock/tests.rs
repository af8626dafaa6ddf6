//! Lines that are clocks, lines that are not, and how far from now a clock may be.

mod forms;
mod nonces;

use super::calendar::OFFSETS_MIN;
use super::*;

/// 2026-11-30 20:06:10 UTC, a Monday.
const NOW: i64 = 1_796_069_170;

fn check(line: &str, expected: Option<Volatile>) {
    assert_eq!(kind(line, NOW), expected, "{line:?}");
}

fn check_parts(line: &str, expected: &[&str]) {
    let parts: Vec<&str> = parts(line, NOW).into_iter().map(|(range, _)| &line[range]).collect();
    assert_eq!(parts, expected, "{line:?}");
}

#[test]
fn a_line_that_tells_the_time_or_day_is_a_clock() {
    for line in [
        // English
        "Current time is 20:06:10. Today's date is 2026-11-30.",
        "Current time is 20:06:10.",
        "Current time: 20:06",
        "The current time is 8:06 PM.",
        "The current time is 8:06:10 p.m.",
        "the current date is November 30, 2026",
        "Current date: Monday, November 30th, 2026",
        "CURRENT DATE: 30 NOV 2026",
        "Current Date and Time: Monday, November 30, 2026 at 8:06:10 PM",
        "**Current Date and Time**: 2026-11-30 20:06:10",
        "- **Current time:** 20:06",
        "* Current time: `20:06`",
        "1. Current time: 20:06",
        "## Current date: 2026-11-30",
        "> Today is 30 November 2026",
        "| Current time | 20:06 |",
        "| **Today's date** | 2026-11-30 |",
        "<current_time>20:06:10</current_time>",
        "  <current-date>2026-11-30</current-date>",
        "\"current_time\": \"2026-11-30T20:06:10Z\",",
        "current_datetime: 2026-11-30T20:06:10.123+00:00",
        "currentDateTime = 2026-11-30T20:06:10",
        "current_date=2026-11-30",
        "[Current time: 20:06]",
        "(Current time: 20:06)",
        "🕒 Current time: 20:06",
        "Time: 20:06",
        "Time: 20:06:10",
        "Date: 2026-11-30 | Time: 20:06",
        "Date and time: 2026-11-30 20:06",
        "Today's date is 2026-11-30",
        "Today’s date: 11/30/2026",
        "Today is Monday, 30 November 2026",
        "Today is Monday.",
        "Today: 2026-11-30",
        "Today is Monday, Nov 30",
        "It is now 20:06.",
        "It's currently 8:06 PM on Monday, November 30, 2026.",
        "It is 20:06 in Berlin, Germany.",
        "Now: 2026-11-30 20:06",
        "Note: the current time is 20:06.",
        "For reference, today's date is 2026-11-30.",
        "Please note that the current date and time is 2026-11-30 20:06:10.",
        "The user's local time is 20:06.",
        "Your current time: 21:06 (Europe/Berlin)",
        "Local time (Europe/Berlin): 21:06",
        "Current time: 2026-11-30 21:06:10 Europe/Berlin",
        "Current time: 2026-11-30 21:06:10 CET (UTC+1)",
        "Current time: 2026-11-30 21:06:10 UTC+1",
        "Current time: 2026-11-30 21:06:10 GMT+01:00",
        "Current date and time is Mon Nov 30 2026 21:06:10 GMT+0100 (Central European Standard Time)",
        "The current date is 2026-11-30 and the time is 20:06.",
        "Current time is 20:06, today's date is 2026-11-30.",
        "As of 2026-11-30 20:06:10",
        "Today Date: 30 Nov 2026",
        "Current weekday: Monday",
        "Today is Mon. 30th of Nov. 2026",
        "Today is Mon. Nov. 30",
        "The current time is 2026-11-30 21:06:10.123456+01:00.",
        "The current time and date is 8:06 PM, November 30, 2026",
        "The current time is 20:06 on Monday, the 30th of November 2026.",
        "It is currently 20:06:10 on 2026-11-30 and the timezone is Europe/Berlin.",
        "Today's date and time is 2026-11-30 20:06:10 (Europe/Berlin) on Monday",
        "Current date and time: 2026-11-30 20:06:10, weekday: Monday, time zone: Europe/Berlin",
        "Current time: 20:06:10 \r",
        // Values that need no words
        "2026-11-30 20:06:10",
        "2026-11-30T20:06:10.123456Z",
        "20261130T200610Z",
        "Mon, 30 Nov 2026 21:06:10 +0100",
        "Mon Nov 30 20:06:10 UTC 2026",
        "Monday, 30 November 2026, 20:06",
        "30.11.2026, 20:06:10",
        "30. November 2026 20:06",
        "11/30/2026, 8:06:10\u{202f}PM",
        "[2026-11-30 20:06:10]",
        // Accents as marks of their own, and spaces that do not break
        "Dzis\u{301} jest 30 listopada 2026",
        "Heure actuelle\u{a0}: 20\u{a0}h\u{a0}06",
        // Counts of seconds
        "Timestamp: 1796069170",
        "Unix time: 1796069170.25",
        "unix_timestamp: 1796069170123",
        "Current time: 1796069170",
        // German
        "Aktuelle Uhrzeit: 20:06",
        "Aktuelle Zeit: 20:06 Uhr",
        "Die aktuelle Uhrzeit ist 20:06:10 Uhr.",
        "Es ist 20:06 Uhr.",
        "Es ist jetzt 20.06 Uhr.",
        "Es ist 20 Uhr 06.",
        "Es ist Montag, der 30. November 2026, 20:06 Uhr.",
        "Heute ist Montag, der 30.11.2026.",
        "Heute ist der 30. November.",
        "Heute ist Montag.",
        "Heute: Mo, 30.11.2026",
        "Das heutige Datum ist der 30. November 2026.",
        "Aktuelles Datum: 30.11.2026",
        "Aktuelles Datum und Uhrzeit: 30.11.2026 20:06:10",
        "Datum und Uhrzeit: Montag, 30. November 2026 um 20:06",
        "Wir haben heute Montag, den 30. November 2026.",
        "Hinweis: Heute ist der 30. 11. 2026.",
        "Uhrzeit: 20:06",
        "Stand: 30.11.2026, 20:06 Uhr",
        "Zeitstempel: 1796069170",
        // Polish
        "Aktualny czas: 20:06",
        "Aktualny czas to 20:06:10.",
        "Aktualna godzina: 20.06",
        "Jest godzina 20:06.",
        "Teraz jest 20:06.",
        "Dzisiaj jest poniedziałek, 30 listopada 2026 r.",
        "Dziś jest poniedziałek, 30 listopada 2026 roku, godz. 20:06.",
        "Dzisiejsza data: 30.11.2026",
        "Aktualna data i godzina: 2026-11-30 20:06",
        "Mamy poniedziałek, 30 listopada 2026.",
        // Romanian
        "Ora curentă: 20:06",
        "Ora actuală este 20:06.",
        "Acum este ora 20:06.",
        "Astăzi este luni, 30 noiembrie 2026.",
        "Astazi este luni, 30 noiembrie 2026",
        "Azi e luni, 30.11.2026",
        "Data curentă: 30 noiembrie 2026",
        "Data și ora curentă: luni, 30 noiembrie 2026, ora 20:06",
        // Russian
        "Текущее время: 20:06",
        "Текущее время 20:06:10.",
        "Сейчас 20:06.",
        "Сейчас 20 часов 06 минут.",
        "Сегодня понедельник, 30 ноября 2026 г.",
        "Сегодня понедельник, 30 ноября 2026 года, 20:06.",
        "Сегодня — 30.11.2026.",
        "Текущая дата: 30 ноября 2026 г.",
        "Текущая дата и время: 30 ноября 2026 г. в 20:06:10",
        // Spanish
        "La hora actual es 20:06.",
        "Hora actual: 20:06:10",
        "Hora actual: 8:06 p. m.",
        "Son las 20:06.",
        "Hoy es lunes, 30 de noviembre de 2026.",
        "Hoy es lunes.",
        "Hoy es lun. 30 de nov. de 2026",
        "Fecha actual: 30/11/2026",
        "Fecha y hora actual: lunes, 30 de noviembre de 2026 a las 20:06",
        // French
        "Il est actuellement 20h06.",
        "Il est 20 h 06.",
        "Heure actuelle : 20:06",
        "L'heure actuelle est 20:06:10.",
        "L’heure actuelle est 20:06.",
        "Nous sommes le lundi 30 novembre 2026.",
        "Nous sommes le lundi 30 novembre 2026 et il est 20h06.",
        "Aujourd'hui, nous sommes le lundi 30 novembre 2026.",
        "Date et heure actuelles : lundi 30 novembre 2026 à 20:06",
    ] {
        check(line, Some(Volatile::Clock));
        assert!(looks_like_clock(line), "{line:?}");
    }
}

#[test]
fn what_belongs_to_the_household_is_no_clock() {
    for line in [
        "",
        "-",
        "Boiler serviced 30.11.2026",
        "Boiler serviced 12.05.2026",
        "Warranty until 2026-11-30",
        "Garantie bis 30.11.2026 20:06",
        "Alarm at 20:06",
        "20:06 school bus",
        "07:30",
        "20:06",
        "20:06:10",
        "2026-11-30",
        "30.11.2026",
        "2026-11-30 20:06 school bus",
        "2026-11-30 20:00",
        "2026-11-30 20:06 - 21:06",
        "Today at 20:06: dentist",
        "Today 20:06",
        "Today: 20:06 dentist",
        "Today is Anna's birthday",
        "Today is Monday, so put out the bins",
        "Today's menu: 2026-11-30",
        "Heute um 20:06 Zahnarzt",
        "Heute: 20:06",
        "Date: 2026-11-30",
        "Datum: 30.11.2026",
        "Time: 20:00",
        "Time: 20:05",
        "Time: 20:06-21:06",
        "Date and time: 2026-11-30 20:00",
        "Uhrzeit: 20:00",
        "Time 20:06",
        "last changed: 2026-11-30 20:06",
        "last_changed: 2026-11-30T20:06:10+00:00",
        "last_updated: '2026-11-30T20:06:10.123456+00:00'",
        "  last_triggered: 2026-11-30 20:06:10",
        "zuletzt geändert: 30.11.2026 20:06:10",
        "next_alarm: 2026-11-30 20:06:10",
        "sensor.date_time: 2026-11-30, 20:06",
        "state: '20:06'",
        "- names: Current time",
        "Opening hours: 08:00-20:06",
        "Öffnungszeiten: Mo-Fr 8.00 bis 20.06 Uhr",
        "Open today until 20:06.",
        "It is 20.06 °C in the kitchen.",
        "It is 20:06 that the train leaves.",
        "Es ist 20,6 °C warm.",
        "It is 30 degrees.",
        "It is 5.",
        "Current temperature: 20.06",
        "Current time zone: UTC",
        "Current time zone: -20:06",
        "Es ist Freitag, 20:06 Uhr.",
        "Today is Friday, 30 November 2025",
        "Aktuelle Zeitzone: +01:00",
        "Current time zone is +02:00",
        "Current time format: HH:MM",
        "Current date format is 2026-11-30",
        "Current time: unknown",
        "Current time: 25:06",
        "Current date: 2026-13-30",
        "Current date: 2026-11-31",
        "Current time: 20:06 to 20:36",
        "Current time: 23:36-20:30",
        "Current time: 20:06, be kind",
        "Current time is {{CURRENT_TIME}}",
        "The time is money.",
        "Time is 20:06 or later.",
        "When the current time is 20:06, say good night.",
        "If the current time is after 20:06, whisper.",
        "Anna asked whether the current time is 20:06.",
        "She wrote: \"Current time is 20:06. Today's date is 2026-11-30. See you.\"",
        "\"Today is 2026-11-30. I miss you.\"",
        "„Heute ist der 30.11.2026. Ich vermisse dich.“ schrieb sie.",
        "(Today is 2026-11-30. We wait.)",
        "Dear Anna, today is Monday.",
        "Berlin, 30.11.2026",
        "Berlin, den 30. November 2026",
        "Monday, 30 November 2026",
        "Tel. 030 2006 1130",
        "Meter: 1796069170",
        "Serial: 1796069170",
        "Order 20261130",
        "The kitchen light is on since 20:06.",
        "Timer: 00:06:10",
        "Sunset: 20:06",
        "Nous sommes 4 à table.",
        "Il est interdit de fumer.",
        "Hoy es fiesta.",
        "Сегодня в 20:06 врач",
        "Dzisiaj o 20:06 dentysta",
        "Jest 20.06 stopni",
        "Mamy 3 psy.",
        "Wir haben 2 Hunde.",
    ] {
        check(line, None);
        assert_eq!(parts(line, NOW), [], "{line:?}");
    }
}

/// `line` has its time or date at `from..=to` and not one second beyond.
fn check_span(line: &str, from: i64, to: i64) {
    assert_eq!(kind(line, from), Some(Volatile::Clock), "{line:?}");
    assert_eq!(kind(line, to), Some(Volatile::Clock), "{line:?}");
    assert_eq!(kind(line, from - 1), None, "{line:?} too early");
    assert_eq!(kind(line, to + 1), None, "{line:?} too late");
    assert!(looks_like_clock(line), "{line:?}");
}

#[test]
fn a_time_is_near_for_two_minutes() {
    for line in [
        "Current time: 20:06:10",
        "Current time: 2026-11-30 20:06:10",
        "Current time: 2026-11-30T20:06:10Z",
        "Current time: 2026-11-30T21:06:10+01:00",
        "Current time: 01:51:10 on 2026-12-01 UTC+05:45",
        "Es ist Montag, der 30. November, 20:06:10 Uhr.",
        "Timestamp: 1796069170",
    ] {
        check_span(line, NOW - 120, NOW + 120);
    }
    // Without seconds the minute counts as a whole: 20:06:00 to 20:06:59.
    for line in ["Current time: 20:06", "Сейчас 20:06.", "Il est 20h06.", "2026-11-30 20:06"] {
        check_span(line, NOW - 130, NOW + 169);
    }
}

#[test]
fn a_time_without_its_zone_is_near_in_any_zone_in_use_and_in_no_other() {
    let line = "Current time: 2026-11-30 20:06:10";
    for minutes in (-720..=840).step_by(15) {
        let expected = OFFSETS_MIN.contains(&minutes).then_some(Volatile::Clock);
        assert_eq!(kind(line, NOW - minutes * 60), expected, "{minutes}");
    }
    assert_eq!(kind(line, NOW + 13 * 3600), None);
    assert_eq!(kind(line, NOW - 15 * 3600), None);
    // A zone in the text leaves no choice.
    assert_eq!(kind("Current time: 2026-11-30 20:06:10 UTC", NOW + 3600), None);
    assert_eq!(kind("Current time: 20:06:10Z", NOW + 3600), None);
    assert_eq!(kind("Current time: 20:06:10Z", NOW + 86_400), Some(Volatile::Clock));
}

#[test]
fn a_date_is_near_for_a_day() {
    // From the first second of the day before to the last of the day behind, in UTC.
    let midnight = NOW - (20 * 3600 + 6 * 60 + 10);
    for line in [
        "Today's date is 2026-11-30",
        "Today is Monday, 30 November",
        "Heute ist der 30.11.",
        "Heute ist der 30.11.26.",
        "Сегодня 30 ноября 2026 г.",
    ] {
        check_span(line, midnight - 86_400, midnight + 2 * 86_400 - 1);
    }
    // A weekday comes again after a week.
    let line = "Today is Monday.";
    check_span(line, midnight - 86_400, midnight + 2 * 86_400 - 1);
    assert_eq!(kind(line, NOW + 7 * 86_400), Some(Volatile::Clock));
}

#[test]
fn dates_and_times_hold_across_midnight_and_new_year() {
    let new_year = calendar::day(2027, 1, 1).map_or(0, |day| day * 86_400);
    for line in [
        "Current time is 23:59:30. Today's date is 2026-12-31.",
        "Current time is 00:00:30. Today's date is 2027-01-01.",
        "Current time: 00:00",
        "Current time: 23:59",
        "Today is 31 December",
        "Today is 1 January",
        "2026-12-31 23:59:59",
    ] {
        assert_eq!(kind(line, new_year), Some(Volatile::Clock), "{line:?}");
        assert_eq!(kind(line, new_year - 1), Some(Volatile::Clock), "{line:?}");
    }
}

#[test]
fn days_are_counted_as_the_calendar_does() {
    assert_eq!(calendar::day(1970, 1, 1), Some(0));
    assert_eq!(calendar::day(2000, 2, 29), Some(11_016));
    assert_eq!(calendar::day(2024, 2, 29), Some(19_782));
    assert_eq!(calendar::day(2026, 11, 30), Some(20_787));
    assert_eq!(calendar::day(2026, 2, 29), None);
    assert_eq!(calendar::day(2100, 2, 29), None);
    assert_eq!(calendar::weekday_of(20_787), 0);
    assert_eq!(calendar::weekday_of(-1), 2);
}

#[test]
fn clock_sentences_of_a_longer_line_are_found_whole() {
    check_parts(
        "Current time is 20:06:10. Today's date is 2026-11-30. You are a helpful assistant.",
        &["Current time is 20:06:10. ", "Today's date is 2026-11-30. "],
    );
    check_parts("You are HAL. The current time is 8:06 p.m. Be kind.", &["The current time is 8:06 p.m. "]);
    check_parts("- Es ist 20:06 Uhr. Du bist Anna.", &["Es ist 20:06 Uhr. "]);
    check_parts("Dziś jest 30 listopada 2026 r. Jesteś asystentem.", &["Dziś jest 30 listopada 2026 r. "]);
    check_parts("Сегодня 30 ноября 2026 г. Ты помощник.", &["Сегодня 30 ноября 2026 г. "]);
    check_parts("Es ist 20:06 Uhr. Der Hund bellt.", &["Es ist 20:06 Uhr. "]);
    check_parts("Es ist 20:06 Uhr. 4 Gäste kommen.", &["Es ist 20:06 Uhr. "]);
    check_parts("Es ist 20:06 Uhr. 20:15 kommt der Bus.", &["Es ist 20:06 Uhr. "]);
    check_parts("Сегодня 30 ноября 2026 г. В доме тепло.", &["Сегодня 30 ноября 2026 г. "]);
    check_parts("**Today is 2026-11-30.** Be kind.", &["**Today is 2026-11-30.** "]);
    check_parts("**Today is 2026-11-30. Be kind.**", &[]);
    check_parts("He said \"wait.\" Current time: 20:06.", &["Current time: 20:06."]);
    check_parts("Arrive at approx. current time 20:06.", &[]);
    check_parts("Today is 2026-11-30. 4 guests come.", &["Today is 2026-11-30. "]);
    check_parts("Am 3. Tag. Heute ist der 30.11.2026. Danke.", &["Heute ist der 30.11.2026. "]);
    for line in ["You are HAL. The current time is 20:06.", "Current time is 20:06. You are HAL."] {
        check(line, None);
        assert!(looks_like_clock(line), "{line:?}");
    }
}

#[test]
fn a_clock_far_from_now_has_the_form_of_one() {
    for line in ["Current time is 15:09:20.", "Today's date is 2024-09-09", "You are HAL. Heute ist der 1.2.2020."] {
        check(line, None);
        assert!(looks_like_clock(line), "{line:?}");
    }
    assert!(!looks_like_clock("Boiler serviced 12.05.2026"));
    assert!(!looks_like_clock("Current time zone: +02:00"));
    assert!(!looks_like_clock("request id: 0f8fad5b-d9cb-469f-a165-70867728950e"));
}
