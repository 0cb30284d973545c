"""Texts with a secret in them, as programs print them, and the secret."""

from __future__ import annotations

SECRET = "hunter2swordfish"
PRIVATE_KEY = "\n".join(
    ["-----BEGIN RSA PRIVATE KEY-----"]
    + [f"MIIEow{SECRET}{'x7vH' * 10}"] * 4
    + ["-----END RSA PRIVATE KEY-----"]
)
SECRET_TEXTS = {
    "YAML": f"password: {SECRET}",
    "YAML with spaces": f"passphrase: correct {SECRET} battery",
    "a line that was removed": f"-password: {SECRET}",
    "Python": f'DB_PASSWORD = "{SECRET}"',
    "lower case": f"db_password={SECRET}",
    "camel case": f"clientSecret = '{SECRET}'",
    "a typed default": f'password: str = "{SECRET}"',
    "a long string": f'password = """{SECRET}"""',
    "a keyword argument": f"connect(user='me', password='{SECRET}')",
    "a dictionary": f"os.environ['DB_PASSWORD'] = '{SECRET}'",
    "a comparison": f'if password == "{SECRET}":',
    "JSON": f'{{"user": "me", "db_password": "{SECRET}"}}',
    "JSON in a string": f'"{{\\"password\\": \\"{SECRET}\\"}}"',
    "a quote inside": f'"password": "a\\"{SECRET}"',
    "CSV": f'"a row","password = ""{SECRET}"""',
    "HTML": f"password: &#34;{SECRET}&#34;",
    "a message": f"Error: can't log in: password={SECRET}, user=me",
    "an option": f"login --password {SECRET}",
    "a header": f"X-Api-Key: {SECRET}",
    "a token": f"access_token: {SECRET}",
    "a shell's variable": f"export DB_PASS={SECRET}",
    "npm": f"//registry.npmjs.org/:_authToken=npm_{SECRET}",
    "OpenAI": f"from sk-proj-{SECRET}-x7vH",
    "Anthropic": f"from sk-ant-api03-{SECRET}",
    "GitHub": f"from ghp_{SECRET}{'x7vH' * 5}",
    "SendGrid": f"from SG.{SECRET}x7vHx7.{'x7vH' * 10}x7v",
    "a Slack webhook": f"https://hooks.slack.com/services/T0/B0/{SECRET}x7vH",
    "Stripe": f"from sk_live_{SECRET}x7vHx7vH",
    "a private key": PRIVATE_KEY,
    "a private key in JSON": f'"key": "{PRIVATE_KEY}"'.replace("\n", "\\n"),
    "a private key in a difference": "\n".join(f"+{line}" for line in PRIVATE_KEY.splitlines()),
    "a private key that was cut off": PRIVATE_KEY.rpartition("\n")[0],
}
